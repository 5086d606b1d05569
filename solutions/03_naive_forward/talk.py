# %% [markdown] after="# 03 Naive model parallelism, forward" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="With `mp_size=4`, part 02 gives each rank a quarter of the columns of fc1's weight. So each rank computes a quarter of the columns of the" tags=["notes"]
# Say what is split and what is not: every rank has all samples, but only three of the twelve hidden units. Ask what rank 2 would still need
# to compute even one number of the output: the other nine hidden units of that sample.

# %% [markdown] after="Draw the hidden activations" tags=["slide"]
# ## A question for the room
#
# Each rank has some of the columns. After MPI's all-gather, in what order are the numbers in memory?

# %% [markdown] tags=["fragment"]
# Rank by rank: the whole block of the first rank, then that of the second, and so on. Not row by row.

# %% [markdown] after="## Three words" tags=["notes"]
# These three words stay with us until the last part. Ask for each of them: how much memory does a rank need, and can it compute the sum of
# all numbers alone?

# %% [markdown] after="Draw the three placements" tags=["notes"]
# Have the room name everyday examples: in data parallel training, the weights are replicated, the batch is sharded, and each rank's
# gradient is partial. Stress that partial arrays look like replicated ones: same shape on all ranks, no error.

# %% [markdown] after="Which placement is it?" tags=["notes"]
# It prints "sharded along dimension 1". The function compares values, so it could also print several placements: an array of zeros is
# replicated and partial at the same time.

# %% [markdown] after="A collective takes an array from one placement to another:" tags=["notes"]
# Four lines are enough for the whole of tensor and data parallelism. Cover the right column, and let the room say the collectives.

# %% [markdown] after="Draw the lines of this part" tags=["notes"]
# Both lines look the same, and in forward they are. In backward they differ: part 05. Ask which collective would take a partial array to
# a replicated one, as a preview of part 04.

# %% [markdown] after="Gather the parts" tags=["notes"]
# Have the room write down the first eight numbers in memory: 1, 2, 11, 12, 3, 4, 13, 14. The second sample is scattered in pieces of two
# numbers, one piece in each rank's block. MPI has done what it promises; putting the numbers in order is up to us.

# %% [markdown] after="Draw what MPI delivers" tags=["notes"]
# The tempting shortcut is a receive buffer of shape (2, 8). The shape is right and nothing complains, but its row 0 reads 1, 2, 11, 12, 3,
# 4, 13, 14. Ask which axis of `received` is which: ranks, samples, hidden units.

# %% [markdown] after="Put the parts side by side" tags=["notes"]
# Only the parts of ranks 0 and 1 are joined here, so the rows end with 4 and 14. Ask what `axis=0` would give: four rows, as if the batch
# were twice as large.

# %% [markdown] after="Put the parts side by side" tags=["slide"]
# ## A question for the room
#
# What costs more here: the exchange, or putting the parts in order?

# %% [markdown] tags=["fragment"]
# On one machine, both copy the same bytes once or twice. Between machines, the exchange is far slower.

# %% [markdown] after="## Your turn: the input of fc2" tags=["notes"]
# Ask why the layout matters if the values are right: given a plain array, as everywhere in this course, MPI reads memory from front to back
# and knows nothing about strides. (With derived datatypes it can be told about them.) If you gather the transposes and return `parts.T`,
# you get the right values in the wrong layout, and the course's collectives reject it with a message.

# %% [markdown] after="Exercise: naive_collect_forward_input" tags=["notes"]
# Two things to point out: `x.dtype` in `np.empty`, without which the buffer would be float64, and `axis=1`. The first axis of `parts` is
# the rank, just as MPI delivers them.

# %% [markdown] after="## Your turn: the output of fc2, as a question of memory" tags=["notes"]
# Ask whether this is a sum. It is not: the output is sharded, not partial. Each rank's columns are complete, so they belong side by side.
# In part 04 it will be a sum, so make the difference clear here.

# %% [markdown] after="What moves, and what does not" tags=["notes"]
# Strides 2 1, then 1 2 for the view, then 2 1, and for `np.copy` again 1 2, not contiguous. Many people expect a copy to be contiguous
# always. The default of `np.copy` is order "K": keep.

# %% [markdown] after="Exercise: naive_collect_forward_output" tags=["notes"]
# The exchange is the same, but the parts are reordered in another way: (ranks, samples, columns) becomes (samples, ranks, columns), and the
# last two axes are merged. With `transpose(1, 2, 0)` the shape is right too, but the columns of different ranks are mixed up. The other
# way gathers the transposes, whose memory has all columns of rank 0 first, and copies the transpose of the result.

# %% [markdown] after="Check" tags=["notes"]
# The check counts bytes: an all-reduce of arrays padded with zeros gives the right values but still fails. And it runs with mp_size 4 and
# 2, so a hard-coded 4 is caught.

# %% [markdown] after="Draw the collected input" tags=["notes"]
# Compare with the first picture: there it was 8 by 3 on each rank, here it is 8 by 12 on all four. Ask what is still split now: the
# weights, but no longer the activations.

# %% [markdown] after="Count the bytes" tags=["notes"]
# 46 kB versus 92 kB, exactly twice as much: an all-reduce is a reduce-scatter and an all-gather, and here its first half only adds zeros.
# Ask what a batch of 120 would do: both bars double.

# %% [markdown] after="Draw the memory" tags=["notes"]
# From 15 kB to 61 kB, four times as much. This array has to be kept until the backward pass, because the gradient of the weight is computed
# from it.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# What does a rank hold now that it did not hold before?

# %% [markdown] tags=["fragment"]
# The activations of the whole hidden layer: mp_size times its own part. That is why this approach is called naive.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: batch times (in_dim + out_dim) numbers against in_dim times out_dim. With 256 hidden units and 12 outputs, that is a batch below 11.5,
# and for a square layer one below half its width. Part 08 does the opposite and sends weights. 2: each rank would have to hold the rows of
# the weight that belong to its hidden units; that is part 04.
