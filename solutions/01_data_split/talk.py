# %% [markdown] after="# 01 Splitting the data" tags=["notes"]
# Draw the grid on the board first: each row is a copy of the model, and all ranks of a column hold the same part of it. The grey lines are
# folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the answer.

# %% [markdown] after="## The grid of ranks" tags=["notes"]
# Before you show the picture, ask where rank 5 sits: second in the third row. Neighboring ranks are usually on the same machine, and the
# ranks of a row talk to each other the most; that is why this is the usual numbering.

# %% [markdown] after="## The grid of ranks" tags=["slide"]
# ## A question for the room
#
# 8 ranks, mp_size 2, dp_size 4, and 1,440 images. On how many does each rank train?

# %% [markdown] tags=["fragment"]
# 360: there are four rows, and both ranks of a row take the same images.

# %% [markdown] after="Start the ranks" tags=["notes"]
# The solid boxes are rows, the dashed ones columns. Point to the left column: ranks 0, 2, 4 and 6 hold the same part of the model and train
# it on different data. Ask which rank must see the same samples as rank 5: only rank 4.

# %% [markdown] after="So the ranks of a row must see **the same** samples, because they run one model together. Different rows must see **different** samples," tags=["notes"]
# Ask how many different blocks of samples there are: four, one for each row, and not eight. The usual false start in the exercise is to
# give every rank its own samples.

# %% [markdown] after="Share among four ranks" tags=["notes"]
# Ask why four of the ranks print nothing. Then set `sharing` to 5: each rank takes two samples, and samples 10 and 11 go to nobody, without
# any error. In the exercise, dp_size always divides the number of samples.

# %% [markdown] after="Share among four ranks" tags=["slide"]
# ## A question for the room
#
# Why must the ranks of a row see the same samples?

# %% [markdown] tags=["fragment"]
# Each one holds only part of the model. An output needs all the parts, all working on the same sample.

# %% [markdown] after="## Your turn" tags=["notes"]
# Work through rank 3 with mp_size 2 and dp_size 4 on the board: it belongs to copy 1. `rank % dp_size` gives 3 and `rank // dp_size` gives
# 0, and both are common first attempts.

# %% [markdown] after="Exercise: split_data" tags=["notes"]
# The expression to point out is `rank // mp_size`, the number of the row; `rank % mp_size` would be the position within the row. Both
# arrays need the same slice, and it is easy to forget the labels.

# %% [markdown] after="Check" tags=["notes"]
# To show a failure, write `rank // dp_size` and run it again: ranks 0 and 1 are still right, so the check complains about rank 2. Point out
# that it recognizes what rank 2 got: the samples of copy 0.

# %% [markdown] after="Draw who holds what" tags=["notes"]
# Read the panels in pairs: ranks 0 and 1 have the first quarter, 2 and 3 the next, each 360 by 4. Ask what the picture would show without
# model parallelism: eight different blocks, half as tall.

# %% [markdown] after="Draw who holds what" tags=["slide-50"]
# ## A question for the room
#
# What if the number of samples is not a multiple of dp_size?

# %% [markdown] tags=["fragment"]
# Some samples are left out, or some are repeated, as PyTorch's sampler does, or the shares are unequal. If they are unequal, the mean of
# the ranks' means is no longer the mean over all samples.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Read the bars in pairs. What the function returned keeps all 737 kB in use, in every grid, because a slice is a view. Only the copy gets
# smaller, and only dp_size matters: with dp_size 1 there is nothing to save.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: reading twice loads the disk twice and needs no communication; a broadcast is better where reading is slow or shuffled at random, and it
# makes sure that the ranks of a row agree. 2: each row then sees about one class at a time, so a step covers about four of the ten classes.
# Shuffle before splitting, with the same seed on all ranks.
