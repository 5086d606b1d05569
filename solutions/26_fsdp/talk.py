# %% [markdown] after="# 26 Fully sharded data parallel" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key. Training in both ways takes a few seconds.

# %% [markdown] after="Draw the parts" tags=["slide"]
# ## A question for the room
#
# An optimizer sees only the flat shards. Which optimizers give the same steps as before, and which do not?

# %% [markdown] tags=["fragment"]
# SGD and Adam work number by number: the same. One that needs a matrix's shape, or the length of a layer's gradient, does not.

# %% [markdown] after="Check the wrapper" tags=["slide-50"]
# ## A question for the room
#
# Why is a block freed after forward, if backward needs it again?

# %% [markdown] tags=["fragment"]
# Else the whole model is there at the end of forward. It costs one more gather: 3 in place of 2 trips of the model's size in a step.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# Two gathers and a reduce-scatter are half again as many bytes as an all-reduce. Must a step wait for them?

# %% [markdown] tags=["fragment"]
# Not where a block computes for longer than the next one's gather takes: they run at the same time.
