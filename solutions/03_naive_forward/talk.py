# %% [markdown] after="# 03 Naive model parallelism, forward" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="With `mp_size=4`, part 02 gives each rank a quarter of the columns of fc1's weight. So each rank computes a quarter of the columns of the" tags=["notes"]
# Say what is split and what is not: every rank has all samples, but only three of the twelve hidden units. Ask what rank 2 lacks to compute
# even one number of the output: the other nine hidden units of that sample.

# %% [markdown] after="Draw the hidden activations" tags=["slide"]
# ## A question for the room
#
# Each rank has some columns. After MPI's all-gather, in which order do the numbers lie?

# %% [markdown] tags=["fragment"]
# Rank after rank: the whole block of the first, then that of the second. Not row by row.

# %% [markdown] after="Gather the parts" tags=["notes"]
# Have the room write down how the memory begins: 1, 2, 11, 12, 3, 4, 13, 14. The second sample is in pieces of two numbers, one in each
# rank's block. MPI has done what it promises; putting the numbers in order is left to us.

# %% [markdown] after="Draw what MPI delivers" tags=["notes"]
# The tempting shortcut is a receive buffer of shape (2, 8). The shape is right, nothing complains, and its row 0 reads 1, 2, 11, 12, 3, 4,
# 13, 14. Ask which axis of `received` is which: ranks, samples, hidden units.

# %% [markdown] after="Put the parts side by side" tags=["notes"]
# Only the parts of ranks 0 and 1 are joined here, so the rows end with 4 and 14. Ask what `axis=0` would give: four rows, as if the batch
# were twice as large.

# %% [markdown] after="Put the parts side by side" tags=["slide"]
# ## A question for the room
#
# Which costs more here: the exchange, or putting the parts in order?

# %% [markdown] tags=["fragment"]
# On one machine both copy the same bytes once or twice. Between machines the exchange is far slower.

# %% [markdown] after="## Your turn: the input of fc2" tags=["notes"]
# Ask why the layout matters if the values are right: MPI reads memory from front to back and knows no strides. Gathering transposes and
# returning `parts.T` gives right values in such a layout; the course's collectives refuse it with a message.

# %% [markdown] after="Exercise: naive_collect_forward_input" tags=["notes"]
# Two things to point at: `x.dtype` in `np.empty`, without which the buffer is float64, and `axis=1`. The first axis of `parts` is the rank,
# just as MPI delivers them.

# %% [markdown] after="## Your turn: the output of fc2" tags=["notes"]
# Ask whether this is a sum. It is not: each rank's columns are complete, so they belong side by side, and an all-reduce would add up
# different outputs. In part 04 it will be a sum, so make the difference clear here.

# %% [markdown] after="Exercise: naive_collect_forward_output" tags=["notes"]
# The same exchange, put in order in another way: (ranks, samples, columns) becomes (samples, ranks, columns), and the last two axes become
# one. With `transpose(1, 2, 0)` the shape is right, too, but the columns of the ranks are mixed.

# %% [markdown] after="Check" tags=["notes"]
# It counts bytes: an all-reduce of arrays padded with zeros has the right values and fails all the same. And it runs with mp_size 4 and 2,
# so that a 4 written into a function is noticed.

# %% [markdown] after="Draw the collected input" tags=["notes"]
# Compare with the first picture: 8 by 3 on each rank there, 8 by 12 on all four here. Ask what is still split now: the weights, but no
# longer the activations.

# %% [markdown] after="Count the bytes" tags=["notes"]
# 46 kB against 92 kB, exactly twice as much: an all-reduce is a reduce-scatter and an all-gather, and here its first half adds zeros. Ask
# what a batch of 120 would do: both bars double.

# %% [markdown] after="Draw the memory" tags=["notes"]
# From 15 kB to 61 kB, four times as much. This array has to stay until backward, as the gradient of the weight is made from it.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# What does a rank hold now that it did not hold before?

# %% [markdown] tags=["fragment"]
# The activations of the whole hidden layer: mp_size times its own part. That is why this way is called naive.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: as long as the batch is smaller than the layer's out_dim; compare batch times in_dim with in_dim times out_dim. Part 08 goes the other
# way and sends weights. 2: a rank would need the rows of the weight that belong to its hidden units, which is part 04.
