# %% [markdown] after="# 07 The gradient of the weights" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the gradients" tags=["slide"]
# ## A question for the room
#
# Sum or mean: what makes four ranks with 16 samples each the same as one with 64?

# %% [markdown] tags=["fragment"]
# The mean, if the loss is the mean over a rank's samples, and all have the same number of them.

# %% [markdown] after="Count the bytes" tags=["slide"]
# ## A question for the room
#
# A weight of 784 by 256 in float32, on 4 ranks: how much does each one send?

# %% [markdown] tags=["fragment"]
# 803 kB times 1.5, the ring's factor: 1.2 MB, in every step.

# %% [markdown] after="Draw the mean" tags=["slide-50"]
# ## A question for the room
#
# Must we wait for the end of backward before we begin?

# %% [markdown] tags=["fragment"]
# No: a layer's gradient is final as soon as backward has passed it. Part 14 makes use of that.
