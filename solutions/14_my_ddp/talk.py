# %% [markdown] after="# 14 Your own DistributedDataParallel" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="The order of hooks" tags=["slide"]
# ## A question for the room
#
# Whose hook fires first: that of the first layer, or of the last?

# %% [markdown] tags=["fragment"]
# The last layer's: backward begins there.

# %% [markdown] after="Time four ways" tags=["slide"]
# ## A question for the room
#
# Why buckets, and not one exchange for each parameter?

# %% [markdown] tags=["fragment"]
# Each exchange takes some time to begin, however small it is. But one single bucket would have to wait for the last gradient.

# %% [markdown] after="Draw the steps" tags=["slide-50"]
# ## A question for the room
#
# What part of the exchange can never be hidden behind backward?

# %% [markdown] tags=["fragment"]
# That of the first layer's gradient: it comes last, and nothing is computed after it.
