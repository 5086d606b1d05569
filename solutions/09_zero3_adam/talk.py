# %% [markdown] after="# 09 Adam on shards" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="The first step" tags=["slide"]
# ## A question for the room
#
# The gradients differ by a factor of a million. By how much do the first steps differ?

# %% [markdown] tags=["fragment"]
# Not at all: Adam divides by the gradient's own size. Each step is about the learning rate.

# %% [markdown] after="## Your turn" tags=["slide"]
# ## A question for the room
#
# What does `step` exchange?

# %% [markdown] tags=["fragment"]
# Nothing. Every number is updated by itself, and a rank has all that its numbers need.

# %% [markdown] after="Compare with the formula" tags=["slide-50"]
# ## A question for the room
#
# 64 ranks, a billion parameters, stage 2: how much does a rank hold?

# %% [markdown] tags=["fragment"]
# 4 GB of parameters, and 12 GB / 64 = 0.19 GB of all else. Now the parameters are what is left to shard: stage 3.
