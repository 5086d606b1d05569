# %% [markdown] after="# 03 Naive model parallelism, forward" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the hidden activations" tags=["slide"]
# ## A question for the room
#
# Each rank has some columns. After MPI's all-gather, in which order do the numbers lie?

# %% [markdown] tags=["fragment"]
# Rank after rank: the whole block of the first, then that of the second. Not row by row.

# %% [markdown] after="Put the parts side by side" tags=["slide"]
# ## A question for the room
#
# Which costs more here: the exchange, or putting the parts in order?

# %% [markdown] tags=["fragment"]
# On one machine both copy the same bytes once or twice. Between machines the exchange is far slower.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# What does a rank hold now that it did not hold before?

# %% [markdown] tags=["fragment"]
# The activations of the whole hidden layer: mp_size times its own part. That is why this way is called naive.
