# %% [markdown] after="# 17 ZeRO as a schedule" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Shards of two layers" tags=["slide"]
# ## A question for the room
#
# Which exchange makes a whole weight of shards, and which makes a shard of a gradient?

# %% [markdown] tags=["fragment"]
# All-gather, and reduce-scatter. Each is half of an all-reduce.

# %% [markdown] after="Draw the schedule" tags=["slide"]
# ## A question for the room
#
# What could a rank do while it waits for a weight?

# %% [markdown] tags=["fragment"]
# Compute the layer before: ask for the next weight early, and await it late. That costs the memory of one more layer.

# %% [markdown] after="Draw sixteen ranks" tags=["slide-50"]
# ## A question for the room
#
# Why does it become worse with small micro-batches?

# %% [markdown] tags=["fragment"]
# Each micro-batch moves all weights again. The fewer samples share that, the more the exchange weighs.
