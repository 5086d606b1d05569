# %% [markdown] after="# 22 Sequence parallel" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the positions" tags=["slide"]
# ## A question for the room
#
# Which parts of a transformer block mix positions?

# %% [markdown] tags=["fragment"]
# Attention, and nothing else. LayerNorm, the MLP, dropout and the residual sums take each position by itself.

# %% [markdown] after="Draw the operators" tags=["slide-50"]
# ## A question for the room
#
# Why is the gradient of an all-gather a reduce-scatter?

# %% [markdown] tags=["fragment"]
# Each rank has used all positions for its own work, and so brings a summand for each of them. A position's owner needs the sum.

# %% [markdown] after="Draw the memory" tags=["slide"]
# ## A question for the room
#
# As many bytes, and less memory: is there a catch?

# %% [markdown] tags=["fragment"]
# The gradients of LayerNorm are partial now. Whoever forgets to add them up gets no error, only weights that drift apart.
