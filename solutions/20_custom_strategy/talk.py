# %% [markdown] after="# 20 Your own strategy" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Overlap" tags=["slide"]
# ## A question for the room
#
# Two exchanges and two computations. In which order would you start them?

# %% [markdown] tags=["fragment"]
# What others wait for first, and an exchange before the computation that does not need it.

# %% [markdown] after="Groups" tags=["slide"]
# ## A question for the room
#
# 32 ranks with 8 on a machine. Which of the groups should be inside a machine?

# %% [markdown] tags=["fragment"]
# Those that send most, and most often: tensor parallel before ZeRO before pipeline.

# %% [markdown] after="Draw 32 ranks" tags=["slide-50"]
# ## A question for the room
#
# What would you give up first if memory ran out?

# %% [markdown] tags=["fragment"]
# Time: recompute activations. It costs about a third of backward, and frees most of the activations.
