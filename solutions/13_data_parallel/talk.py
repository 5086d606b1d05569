# %% [markdown] after="# 13 Data parallelism in three lines" tags=["notes"]
# The gray lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="One sample a rank" tags=["notes"]
# Let everyone write down rank 2's four numbers before and after. Its sample has one input that is not zero, so without the wrapper it has
# 12 in the third place; the means are 1, 2, 3, 4. The usual wrong answer is the sum: 4, 8, 12, 16.

# %% [markdown] after="Draw the gradients" tags=["notes"]
# Point at the diagonal on the left, then at the four equal rows on the right. The zeros count, too: three ranks contribute nothing to a
# weight, and the sum is still divided by four.

# %% [markdown] after="Draw the gradients" tags=["slide"]
# ## A question for the room
#
# Four ranks start from four different random models, and then average their gradients in each step. Do the models become equal?

# %% [markdown] tags=["fragment"]
# No: all ranks take the same step, so their differences stay. That is why there is a broadcast at the start.

# %% [markdown] after="Exercise: rank_batches" tags=["notes"]
# Ask for the answer with 15 batches and 4 ranks: three each, and three are left over; a plain `i % size == rank` gives ranks 0 to 2 a
# fourth. Students who go through the loader twice are caught by the shuffle: the second pass has a different order.

# %% [markdown] after="Exercise: rank_batches" tags=["slide"]
# ## A question for the room
#
# Each rank shuffles the data with its own seed. What goes wrong?

# %% [markdown] tags=["fragment"]
# Some samples come up more than once in an epoch, and some never.

# %% [markdown] after="## Your turn: are the models still equal?" tags=["notes"]
# Ask why we do not compare the mean over all ranks with rank 0's values: plus 0.1 on one rank and minus 0.1 on another cancel out. And why
# not `==`: sums added in a different order may differ in the last digit.

# %% [markdown] after="Exercise: check_parameter_closeness" tags=["notes"]
# Ask what would happen if rank 0 returned as soon as it found a difference: the others call gathers that rank 0 never joins. MPI lets a rank
# that is not the root return from a gather early, once its own part is on its way, so such a program may hang or end, or mix up what comes
# later. So the loop goes through all the parameters, and `close` just remembers. Only rank 0 has a receive buffer.

# %% [markdown] after="## Does it work?" tags=["notes"]
# The check tries two cases: equal models, and models with one number on rank 2 that is off by 0.5. An answer that looks only at rank 1
# fails here. One that looks only at the first parameter passes here; the hidden tests catch it, because they put the difference elsewhere.

# %% [markdown] after="## Train" tags=["notes"]
# Point out that all four models are initialized with the same seed, so here even the run without the wrapper starts with equal models. Ask
# whether that is enough.

# %% [markdown] after="Train with and without" tags=["notes"]
# This is the loop from part 12 with `rank_batches` around the loader; between the two runs, only the model differs. Ask for a guess at both
# accuracies: about 0.92 with the wrapper, which takes 32 samples per step, and 0.86 for rank 0's model without it.

# %% [markdown] after="Draw how far apart they are" tags=["notes"]
# With the wrapper, the line stays at zero. Without it, the line leaves zero in the very first step and does not come back. Each of the four
# models has learned something, but from only a quarter of the data.

# %% [markdown] after="Draw how far apart they are" tags=["slide-50"]
# ## A question for the room
#
# You train with 64 samples on one process, or with 16 on each of four. Should the learning rate be the same?

# %% [markdown] tags=["fragment"]
# Yes: the mean over the ranks is the mean over 64 samples.

# %% [markdown] after="## Where does the time go?" tags=["notes"]
# Let the room guess from the sizes: rank 3 computes four times as long, so the others wait three quarters of the time.

# %% [markdown] after="Trace three steps" tags=["notes"]
# Ask who waits before you run it: everybody for rank 3, at the end of each backward. The wrapper starts an all-reduce when a bucket is full,
# and waits at the end. On a busy machine, other ranks are late at times, too: the table says for whom each rank waited.

# %% [markdown] after="Beside PyTorch" tags=["notes"]
# This needs PyTorch on the machine; otherwise the cell says how to get it. Each rank initializes its own model here, and the wrapper's
# broadcast makes them equal. Ask why the difference is not exactly zero: the numbers are added in a different order, so the sums are
# rounded differently.

# %% [markdown] after="Stop the ranks" tags=["notes"]
# Question 1: 32, so a learning rate that suited batches of 8 may be too small. Question 2: with plain gradient descent it is the same, and
# with momentum too, as both are linear in the gradient; with Adam it is not, since each rank would divide by its own second moment.
