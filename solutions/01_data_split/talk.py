# %% [markdown] after="# 01 Splitting the data" tags=["notes"]
# Draw the grid on the board first: rows are copies of the model, columns are the same part. The grey lines are folded cells: Shift-Enter
# runs them. Three questions for the room come on the way, each with its answer on the next key.

# %% [markdown] after="## The grid of ranks" tags=["notes"]
# Ask where rank 5 sits, before you show the picture: in the third row, in second place. Neighbouring ranks are usually on one machine, and
# the ranks of a row talk most; that is why this numbering is the common one.

# %% [markdown] after="## The grid of ranks" tags=["slide"]
# ## A question for the room
#
# 8 ranks, mp_size 2, dp_size 4, and 1,440 images. How many does each rank load?

# %% [markdown] tags=["fragment"]
# 360: there are four rows, and both ranks of a row load the same ones.

# %% [markdown] after="Start the ranks" tags=["notes"]
# The solid boxes are rows, the dashed ones columns. Point at the left column: ranks 0, 2, 4 and 6 hold the same part of the model and train
# it on different data. Ask which rank must see the same samples as rank 5: only rank 4.

# %% [markdown] after="So the ranks of a row must see **the same** samples: they compute one model together. The rows must see **different** samples, and" tags=["notes"]
# Ask how many different blocks of samples there are: four, one for each row, and not eight. Giving every rank samples of its own is the
# usual wrong start of the exercise.

# %% [markdown] after="Share among four ranks" tags=["notes"]
# Ask why four of the ranks print nothing. Then set `sharing` to 5: each rank takes two samples, and 10 and 11 go to nobody, without an
# error. In the exercise dp_size always divides the number of samples.

# %% [markdown] after="Share among four ranks" tags=["slide"]
# ## A question for the room
#
# Why must the ranks of one row see the same samples?

# %% [markdown] tags=["fragment"]
# Each holds only a part of the model. An output needs all parts, and all of the same sample.

# %% [markdown] after="## Your turn" tags=["notes"]
# Try rank 3 with mp_size 2 and dp_size 4 on the board: it belongs to copy 1. `rank % dp_size` gives 3 and `rank // dp_size` gives 0, and
# both are common first tries.

# %% [markdown] after="Exercise: split_data" tags=["notes"]
# The line to point at is `rank // mp_size`, the number of the row; `rank % mp_size` would be the place in it. Both arrays need the same
# slice; forgetting the labels is easy.

# %% [markdown] after="Check" tags=["notes"]
# To show a failure, write `rank // dp_size` and run again: ranks 0 and 1 are still right, so the complaint is about rank 2. Point out that
# the check recognizes what rank 2 has, the samples of copy 0.

# %% [markdown] after="Draw who holds what" tags=["notes"]
# Read the panels in pairs: ranks 0 and 1 have the first quarter, 2 and 3 the next, each 360 by 4. Ask what the picture would show without
# model parallelism: eight different blocks, half as high.

# %% [markdown] after="Draw who holds what" tags=["slide-50"]
# ## A question for the room
#
# What if the number of samples is no multiple of dp_size?

# %% [markdown] tags=["fragment"]
# Some are left out, or the shares are unequal. Then the mean of the ranks' means is no longer the mean over all samples.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Only dp_size counts: with mp_size 8 and dp_size 1, a rank keeps as much as without splitting. The bars show the slice alone. It is a view,
# so nothing is freed as long as the whole array is there; the next slide asks about that.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: when it copies its part and drops the rest, or reads only its part. 2: each row then sees about one class at a time, so a step has
# about four of the ten. Shuffle before splitting, with the same seed on all ranks; otherwise a row's ranks disagree on the samples.
