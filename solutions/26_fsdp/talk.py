# %% [markdown] after="# 26 Fully sharded data parallel" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key. Training in both ways takes a few seconds.

# %% [markdown] after="In part 13, each rank has the whole model. In part 08, you sharded one layer: its weight is gathered when it is needed, and goes again. Here" tags=["notes"]
# It is ZeRO stage 3 as PyTorch's FSDP does it. Ask what belongs to several blocks: an embedding that is also the output's matrix. It is
# needed first and last, and so it stays in `rest`, whole during the step.

# %% [markdown] after="## A worked example: one flat array" tags=["notes"]
# Let the room answer: nine numbers need three zeros, and rank 2 keeps the bias. It is a coincidence that the cuts fall between weight and
# bias here; in general a part begins in the middle of a matrix.

# %% [markdown] after="Cut a flat array" tags=["notes"]
# Point at the comment: `cut` gives views. So whoever fills `whole` fills the parameters, and no second copy is needed. Ask what rank 3
# keeps: three zeros.

# %% [markdown] after="Draw the parts" tags=["notes"]
# Read it from the left: ranks 0 and 1 have the weight, rank 2 the bias, rank 3 padding alone. In a real model, the padding is at most n - 1
# numbers for a block.

# %% [markdown] after="Draw the parts" tags=["slide"]
# ## A question for the room
#
# An optimizer sees only the flat shards. Which optimizers give the same steps as before, and which do not?

# %% [markdown] tags=["fragment"]
# SGD and Adam work number by number: the same. One that needs a matrix's shape, or the length of a layer's gradient, does not.

# %% [markdown] after="## Your turn: a flat shard" tags=["notes"]
# `Iallgather` returns at once, and `whole` must not be read before `Wait`. Ask where time can be gained: between the two, as long as
# another block computes.

# %% [markdown] after="Exercise: FlatShard" tags=["notes"]
# Point at `.copy()`: without it, the shard is a view that keeps the whole flat array alive, and nothing is saved. `free` waits first,
# because what is on its way still writes into the array. A gradient of None counts as zeros, so that all ranks take part in the
# reduce-scatter.

# %% [markdown] after="## A worked example: who works when" tags=["notes"]
# Have the order written down: forward 0, 1, 2, and backward 2, 1, 0. What most people miss: in backward each block works once more, so
# `before` must bring its weights again.

# %% [markdown] after="Tell who works" tags=["notes"]
# Fourteen lines. Point at `before(i=2, back=True)` right behind `after(i=2, back=False)`: the last block is freed and needed again at once.
# Real systems often keep that one.

# %% [markdown] after="## Your turn: the wrapper" tags=["notes"]
# Item 1 is the prefetch, and with it at most two blocks are whole. The bracket in item 3 is about a forward whose backward never came, as
# in an evaluation. In item 4 the parts are disjoint, so no square is counted twice.

# %% [markdown] after="Exercise: FullyShardedDataParallel" tags=["notes"]
# It is short because `FlatShard` has the work. Point at `start()` for the following block: with `gather()` there the numbers are right, and
# nothing overlaps. Without `free` after forward, the whole model is there at the end of forward.

# %% [markdown] after="Check the wrapper" tags=["slide-50"]
# ## A question for the room
#
# Why is a block freed after forward, if backward needs it again?

# %% [markdown] tags=["fragment"]
# Else the whole model is there at the end of forward. It costs one more gather: 3 in place of 2 trips of the model's size in a step.

# %% [markdown] after="## What it costs" tags=["notes"]
# Ask for the ratio of the two bars before you show them. Parameters, gradients and both moments are all sharded, so it is the number of
# ranks: four.

# %% [markdown] after="Draw the blocks of a step" tags=["notes"]
# Read it column by column: the coloured box works, the grey one beside it is on its way. In forward that is the block below, in backward
# the one above. There are never more than two in a column.

# %% [markdown] after="Draw the memory" tags=["notes"]
# About four to one. The bars do not show the step itself: up to two whole blocks, and the activations, which this method does not shard.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# Two gathers and a reduce-scatter are half again as many bytes as an all-reduce. Must a step wait for them?

# %% [markdown] tags=["fragment"]
# Not where a block computes for longer than the next one's gather takes: they run at the same time.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: when several micro-batches are accumulated over a slow network, it saves a reduce-scatter in each. For 2: half again as many, three
# trips instead of two. Flat arrays make few large messages, where many small ones would pay the latency each time.
