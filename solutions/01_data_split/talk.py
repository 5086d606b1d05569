# %% [markdown] after="# 01 Splitting the data" tags=["notes"]
# Draw the grid on the board first: rows are copies of the model, columns are the same part. The grey lines are folded cells: Shift-Enter
# runs them. Three questions for the room come on the way, each with its answer on the next key.

# %% [markdown] after="## The grid of ranks" tags=["slide"]
# ## A question for the room
#
# 8 ranks, mp_size 2, dp_size 4, and 1,440 images. How many does each rank load?

# %% [markdown] tags=["fragment"]
# 360: there are four rows, and both ranks of a row load the same ones.

# %% [markdown] after="Share among four ranks" tags=["slide"]
# ## A question for the room
#
# Why must the ranks of one row see the same samples?

# %% [markdown] tags=["fragment"]
# Each holds only a part of the model. An output needs all parts, and all of the same sample.

# %% [markdown] after="Draw who holds what" tags=["slide-50"]
# ## A question for the room
#
# What if the number of samples is no multiple of dp_size?

# %% [markdown] tags=["fragment"]
# Some are left out, or the shares are unequal. Then the mean of the ranks' means is no longer the mean over all samples.
