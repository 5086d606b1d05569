# ---
# jupyter:
#   course:
#     picture: train-them
# ---

# %% [markdown] after="# 33 The silent bug" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="## Six runs, and none is right" tags=["notes"]
# Ask who has had a run like that, and after how many days it was found. The six runs are modelled on real bug reports; the notebook's box "In
# the wild" names them.

# %% [markdown] after="Train them" tags=["notes"]
# It takes a few seconds. Let the room vote: most will accuse A, which shows about half of the true loss. B lies on the line of one rank, and C,
# D, E and F are so near to it that nobody would stop them.

# %% [markdown] after="Train them" tags=["slide"]
# ## A question for the room
#
# The loss of run E is lower than that of one rank. Is that good news?

# %% [markdown] tags=["fragment"]
# No. Its copies have drifted apart, so each tensor parallel rank trains a model of its own, and what is saved will be another one. A low loss
# proves nothing. And the run that looks worst, A, trains right: it only shows a wrong number.

# %% [markdown] after="## A worked example: what does rounding explain?" tags=["notes"]
# Let the room guess first: does the difference grow with the number of terms, with its root, or not at all?

# %% [markdown] after="Add in two orders" tags=["notes"]
# In units of epsilon, the formats behave alike. From 10 to 1,000 terms, the error grows by far less than a hundred, and more than
# not at all: a tolerance needs the format and the number of terms.

# %% [markdown] after="## Your turn: close enough" tags=["notes"]
# Point at "largest": a tolerance relative to each element accuses right runs wherever terms cancel. Draw two long arrows that nearly cancel.

# %% [markdown] after="Exercise: close_enough" tags=["notes"]
# The 4 is room for luck; anything from 1.5 to about 12 passes the tests. `np.allclose` with its defaults fails them in both directions: gradients
# of 1e-9 are all "close" to zero, and bfloat16 never is.

# %% [markdown] after="Exercise: close_enough" tags=["slide-50"]
# ## A question for the room
#
# Why is a tolerance of 1e-5 for everything worse than none?

# %% [markdown] tags=["fragment"]
# It accuses every run in 16 bits, so people raise it or switch the check off; and it is blind to anything wrong in gradients that are smaller
# than it.

# %% [markdown] after="## Your turn: the same on an axis" tags=["notes"]
# Ask for cheaper ideas than sending the array, and break each one: the sum (two errors cancel), the first element, Python's `hash`.

# %% [markdown] after="Exercise: same_on" tags=["notes"]
# 32 bytes from each rank, for an array of any size. Point at the dtype and the shape: a matrix and its transposed copy may have the same bytes.

# %% [markdown] after="Look for copies that differ" tags=["notes"]
# Only run E's copies differ, on tp. It is the cheapest of the three instruments, and a large run can afford it in every hundredth step.
# It does not find the others: on all ranks, they are wrong in the same way.

# %% [markdown] after="## A worked example: a step" tags=["notes"]
# The interface matters: a step that can also be taken on one rank, on the same weights. Real code often has no such door, and then nobody tests.

# %% [markdown] after="Look at a step" tags=["notes"]
# The last two lines are nearly the same: the gradient of a batch is the mean of the samples' gradients. A gradient in which some samples are
# missing is a weighted sum of them, and least squares finds the weights.

# %% [markdown] after="## Your turn: compare with one rank" tags=["notes"]
# Go through the table with one example each: a division that was forgotten; an all-reduce that was forgotten; ranks in another order; a buffer
# that is read too early; a micro-batch that is lost. The order of the rows decides where two of them fit.

# %% [markdown] after="Exercise: compare_with_one_rank" tags=["notes"]
# Long, but each kind is one comparison. Point at `wrong`: it is the same list on all ranks, as every rank has all arrays. So all of them take
# the same branch, and no collective can be called on some ranks only.

# %% [markdown] after="## What the instrument says" tags=["notes"]
# Remind the room of their votes.

# %% [markdown] after="Compare all runs" tags=["notes"]
# One line for each run. For D, everything that backward reached before the attention of the second block is right, and everything after it is
# polluted. That is why the first wrong one in the order of backward matters.

# %% [markdown] after="Compare all runs" tags=["slide"]
# ## A question for the room
#
# Run B multiplies all gradients by 4. Why does its curve not show it?

# %% [markdown] tags=["fragment"]
# Adam divides the mean of the gradients by the root of the mean of their squares: a factor cancels. With SGD, it would be a learning rate 4
# times as large; with clipping, a limit 4 times as low; and the gradient norm in the log is wrong.

# %% [markdown] after="The run that looks worst trains right: only the loss that A shows is wrong. Adam divides a gradient by its own size, so B's factor is gone," tags=["notes"]
# If somebody asks about D: qkv's gradient is right in the columns of q, and wrong in those of k and v.

# %% [markdown] after="Read the source" tags=["notes"]
# Let the room find both. In `accumulate`, the reset is inside the loop. In `own_gradients`, each rank takes its own part, and what the other
# ranks' queries contribute is lost. For a causal mask, only earlier positions lose something, so the last rank is right.

# %% [markdown] after="Exercise: accumulate" tags=["notes"]
# Moving the reset alone leaves a factor of 2, and the instrument says so.

# %% [markdown] after="Exercise: own_gradients" tags=["notes"]
# A sum and then a part, or at half the bytes a reduce-scatter. It is the gradient of an all-gather, as in part 22.

# %% [markdown] after="Compare the repaired run" tags=["notes"]
# It says None now. What would you still test? The next step, other grids, another dtype.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: the logged norm, clipping and anything else that compares gradients with a number. For 2: a smaller model with the same code and grid.
# For 3: right runs, as the bound follows from sums that have become small; it would have to know the size of the terms.
