# %% [markdown] after="# 04 Megatron model parallelism, forward" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the weight of fc2" tags=["slide"]
# ## A question for the room
#
# fc1 is split by columns, fc2 by rows. Which exchange is left between them?

# %% [markdown] tags=["fragment"]
# None: what a rank has of the hidden layer is just what its rows of fc2 need.

# %% [markdown] after="Draw the summands" tags=["slide"]
# ## A question for the room
#
# Why may each rank apply the activation function by itself?

# %% [markdown] tags=["fragment"]
# It works on every number by itself, and a rank has whole numbers of the hidden layer. Of summands it would be wrong: f(a + b) is not
# f(a) + f(b).

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# When does the naive way send less than this one?

# %% [markdown] tags=["fragment"]
# When the hidden layer is small beside the output: an all-gather moves the hidden activations, an all-reduce twice the output.
