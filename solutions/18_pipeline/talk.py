# %% [markdown] after="# 18 A pipeline" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="A message" tags=["slide"]
# ## A question for the room
#
# What is sent from stage to stage?

# %% [markdown] tags=["fragment"]
# Activations on the way forward, their gradients on the way back. No weights, and no gradients of weights.

# %% [markdown] after="Draw the pipeline" tags=["slide"]
# ## A question for the room
#
# Four ranks, one after the other. How busy is each of them at best?

# %% [markdown] tags=["fragment"]
# A quarter of the time. Micro-batches are the way out: part 19.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# Then what is such a pipeline good for?

# %% [markdown] tags=["fragment"]
# For memory: no rank holds a layer of another one, and little is sent.
