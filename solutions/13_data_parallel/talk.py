# %% [markdown] after="# 13 Data parallel in three lines" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="One sample a rank" tags=["notes"]
# Let everyone write down the four numbers of rank 2 before and after. Its sample has one pixel that is not zero, so alone it has 12 in the
# third place; the means are 1, 2, 3, 4. The usual wrong answer is the sum: 4, 8, 12, 16.

# %% [markdown] after="Draw the gradients" tags=["notes"]
# Point at the diagonal on the left, then at the four equal rows on the right. The zeros count, too: three ranks say nothing about a weight,
# and still the sum is divided by four.

# %% [markdown] after="Draw the gradients" tags=["slide"]
# ## A question for the room
#
# Four ranks draw four models, and then average their gradients in each step. Do the models become equal?

# %% [markdown] tags=["fragment"]
# No: all take the same step, so their differences stay. Hence the broadcast at the start.

# %% [markdown] after="Exercise: rank_batches" tags=["notes"]
# Ask for the answer with 15 batches and 4 ranks: three each, and three are nobody's; a plain `i % size == rank` gives ranks 0 to 2 a
# fourth. Students who go through the loader twice are caught by the shuffle: the second pass has another order.

# %% [markdown] after="Exercise: rank_batches" tags=["slide"]
# ## A question for the room
#
# Each rank shuffles the data with a seed of its own. What goes wrong?

# %% [markdown] tags=["fragment"]
# Some samples come twice in an epoch, and some never.

# %% [markdown] after="## Your turn: are the models still equal?" tags=["notes"]
# Ask why one does not compare the mean of all ranks with rank 0's: plus 0.1 on one rank and minus 0.1 on another cancel. And why not `==`:
# sums that were added in another order may differ in the last digit.

# %% [markdown] after="Exercise: check_parameter_closeness" tags=["notes"]
# Ask what would happen if rank 0 returned as soon as it finds a difference: the others would wait in the next gather. So the loop always
# goes through all parameters, and `close` only remembers. Only rank 0 has a receive buffer.

# %% [markdown] after="## Does it work?" tags=["notes"]
# For the models two cases are tried: equal ones, and one number on rank 2 that is off by 0.5. An answer that looks at rank 1 only fails
# here. One that looks at the first parameter only passes, and is found by the hidden tests, which put the difference elsewhere.

# %% [markdown] after="## Train" tags=["notes"]
# Point out that all four models are drawn with the same seed, so here even the run without the wrapper starts equal. Ask whether an equal
# start is enough.

# %% [markdown] after="Train with and without" tags=["notes"]
# It is the loop of part 12 with `rank_batches` around the loader; only the model that it gets differs. Ask for a guess of both accuracies:
# about 0.92 with the wrapper, which takes 32 samples a step, and 0.86 for rank 0's model without.

# %% [markdown] after="Draw how far apart" tags=["notes"]
# The line of the wrapper lies on zero. The other one leaves it in the very first step and does not come back. Each of the four models has
# learned something, but from a quarter of the data.

# %% [markdown] after="Draw how far apart" tags=["slide-50"]
# ## A question for the room
#
# 64 samples on one process, or 16 on each of four: is the learning rate the same?

# %% [markdown] tags=["fragment"]
# Yes: the mean over the ranks is the mean over 64 samples.

# %% [markdown] after="Beside PyTorch" tags=["notes"]
# It needs PyTorch on this machine; otherwise the cell says how to get it. Each rank draws its own model here, and the wrapper's broadcast
# makes them equal. Ask why the difference is not exactly zero: the sums are rounded in another order.

# %% [markdown] after="Stop the ranks" tags=["notes"]
# Question 1: 32, so a learning rate that suited batches of 8 may be too small. Question 2: with plain gradient descent it is the same, and
# with momentum, too, as both are linear in the gradient; with Adam it is not, since each rank would divide by its own second moment.
