# %% [markdown] after="# 22 Sequence parallel" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the positions" tags=["notes"]
# In the picture on the title slide, each rank has two positions in full width. This matters: in the paper's formula, 10 of 34 parts of a
# layer's activations (without attention's scores) are not divided by tensor parallelism.

# %% [markdown] after="Draw the positions" tags=["slide"]
# ## A question for the room
#
# Which parts of a transformer block mix positions?

# %% [markdown] tags=["fragment"]
# Attention, and nothing else. LayerNorm, the MLP, dropout and the residual sums take each position by itself.

# %% [markdown] after="An all-reduce is a reduce-scatter and then an all-gather. So after the split work, a reduce-scatter gives each rank the sum for its own" tags=["notes"]
# Ask what this costs in bytes: nothing, the two halves of the all-reduce were there before. What is new is where LayerNorm and the residual
# sum stand: between the halves, on a quarter of the positions.

# %% [markdown] after="Draw the operators" tags=["notes"]
# `gather_sequence` takes the place of f, `scatter_sequence` that of g. Point at the gradient on the right of the upper operator: it is
# partial, so a rank may not simply take the slice for its own positions.

# %% [markdown] after="Draw the operators" tags=["slide-50"]
# ## A question for the room
#
# Why is the gradient of an all-gather a reduce-scatter?

# %% [markdown] tags=["fragment"]
# Each rank has used all positions for its own work, and so brings a summand for each of them. A position's owner needs the sum.

# %% [markdown] after="## A worked example" tags=["notes"]
# Have the room write down both rows first. In memory, the first sample would get 0, 1, 10, 11: both samples of ranks 0 and 1. It should get
# 0, 10, 20, 30.

# %% [markdown] after="Gather along another dimension" tags=["notes"]
# Point at `axis=1` in the last line: one `concatenate`, and with it a copy. On the way back the same order is made with `split`.

# %% [markdown] after="Exercise: gather_sequence" tags=["notes"]
# Point at the reduce-scatter in `backward`. The error to warn of is to return the own slice of `grad`: it runs, it has the right shape, and
# three of four summands are lost. The array of splits puts each rank's positions together in memory before they are scattered.

# %% [markdown] after="Exercise: scatter_sequence" tags=["notes"]
# The same two exchanges in the other order. An all-reduce with a slice gives the right numbers with twice the bytes, and the hidden tests
# count them. On the way back each summand gets the whole gradient, not only that of the rank's own positions.

# %% [markdown] after="## What about LayerNorm's own gradients?" tags=["notes"]
# Ask before you run the cell what a rank finds: the shift's gradient is the sum over its positions of what comes back. Ones come back, and
# a rank has two positions.

# %% [markdown] after="Name the kind" tags=["notes"]
# The trap on this slide: all ranks have the same numbers, and still the gradient is partial. Equal does not mean whole, so comparing the
# ranks would not have found this mistake here.

# %% [markdown] after="The kinds of a block's parameters" tags=["notes"]
# Ask which ones are replicated: the scales and shifts of the two norms, four small vectors. Their all-reduce costs next to nothing, and
# that is why it is so easily forgotten.

# %% [markdown] after="Exercise: reduce_norm_gradients" tags=["notes"]
# A sum and no mean: the ranks have other positions of the same texts, not other samples. The code asks for the kind. Going by the shape
# instead, every vector for replicated, fails as soon as a vector is sharded.

# %% [markdown] after="Now the gradients are right. Long ones are *clipped*: if the length of all of them together, as one vector, is above a limit, all are scaled" tags=["notes"]
# Take answers: squares of sharded gradients are added over the group, those of replicated ones count once. Adding up all of them counts
# LayerNorm once for each rank, which makes the length only a little too large.

# %% [markdown] after="Exercise: clip_gradients" tags=["notes"]
# One number is sent. Point at the condition: it is the length of all, the same on every rank. If a rank goes by its own length, the ranks
# scale replicated gradients differently, and these weights drift apart.

# %% [markdown] after="## What it costs" tags=["notes"]
# Ask for the bytes of the three ways before you run it. The first two must be equal, and the third has two all-gathers more: ten halves of
# an all-reduce instead of eight.

# %% [markdown] after="Measure three ways" tags=["notes"]
# Other operations, and the same sum: 786 kB in the first two ways, 983 kB in the third. Then ask what the third way buys, and go on to the
# memory.

# %% [markdown] after="Draw the memory" tags=["notes"]
# The second way still keeps the gathered inputs of the two matrices that are cut by columns, in full on every rank. The third way does not.
# The scores and the hidden units are the same in all three ways: those were split in part 21 already.

# %% [markdown] after="Draw the memory" tags=["slide"]
# ## A question for the room
#
# As many bytes, and less memory: is there a catch?

# %% [markdown] tags=["fragment"]
# The gradients of LayerNorm are partial now. Whoever forgets to add them up gets no error, only weights that drift apart.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: time, as backward waits for two more gathers, unless they run beside other work. Megatron does it this way. For 2: here each rank
# must draw a mask of its own, and in part 21, where the output is replicated, all must draw the same.
