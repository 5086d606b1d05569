# %% [markdown] after="# 26 Fully sharded data parallel" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer. Training in both ways takes a few seconds.

# %% [markdown] after="In part 13, each rank has the whole model. In part 08, you sharded one layer: its weight is gathered when it is needed, and freed again" tags=["notes"]
# This is ZeRO stage 3 the way PyTorch's FSDP does it. Ask what belongs to several blocks: an embedding that is also the output matrix. It
# is needed first and last, so it stays in `rest`, whole during the step.

# %% [markdown] after="## A worked example: one flat array" tags=["notes"]
# Let the room answer: nine numbers need three zeros, and rank 2 keeps the bias. It is a coincidence that the cuts fall between weight and
# bias here; in general, a part begins in the middle of a matrix.

# %% [markdown] after="Cut a flat array" tags=["notes"]
# Point at the comment: `cut` gives views. So if you fill `whole`, you fill the parameters, and no second copy is needed. Ask what rank 3
# keeps: three zeros.

# %% [markdown] after="Draw the parts" tags=["notes"]
# Read it from the left: ranks 0 and 1 have the weight, rank 2 the bias, rank 3 only padding. In a real model, the padding is at most n - 1
# numbers per block.

# %% [markdown] after="Draw the parts" tags=["slide"]
# ## A question for the room
#
# An optimizer sees only the flat shards. Which optimizers take the same steps as before, and which do not?

# %% [markdown] tags=["fragment"]
# SGD and Adam work number by number, so their steps are the same. An optimizer that needs a matrix's shape, or the norm of a layer's
# gradient, takes different ones.

# %% [markdown] after="## Your turn: a flat shard" tags=["notes"]
# `Iallgather` returns immediately, and `whole` must not be read before `Wait`. Ask where there is time to be gained: between the two, while
# another block computes.

# %% [markdown] after="Exercise: FlatShard" tags=["notes"]
# Point at `.copy()`: without it, the shard is a view that keeps the whole flat array alive, and nothing is saved. `free` waits first,
# because a gather in flight still writes into the array. A gradient of None counts as zeros, so that all ranks take part in the
# reduce-scatter.

# %% [markdown] after="## A worked example: which block runs when" tags=["notes"]
# Have the room write down the order: forward 0, 1, 2, and backward 2, 1, 0. What most people miss: a block was freed after its forward, so
# `before` must fetch its weights again.

# %% [markdown] after="Print the calls" tags=["notes"]
# Fourteen lines. Point at `before(i=2, back=True)` right after `after(i=2, back=False)`: the last block is freed and immediately needed
# again. Real systems often keep that one.

# %% [markdown] after="## Your turn: the wrapper" tags=["notes"]
# Let the room assign each line to a hook. The first line is the prefetch, and with it at most two blocks are whole. The second is about a
# forward whose backward never came, as in an evaluation. In `clip_gradients` the parts are disjoint, so no square is counted twice.

# %% [markdown] after="Exercise: FullyShardedDataParallel" tags=["notes"]
# It is short because `FlatShard` does the work. Point at `start()` for the following block: with `gather()` there, the numbers are right,
# but nothing overlaps. Without `free` after a block's forward, the whole model is in memory at the end of the forward pass.

# %% [markdown] after="Check the wrapper" tags=["slide-50"]
# ## A question for the room
#
# Why is a block freed after its forward, if backward needs it again?

# %% [markdown] tags=["fragment"]
# Otherwise the whole model would be in memory at the end of the forward pass. The price is one more gather: each step moves 3 times the
# model's size instead of twice.

# %% [markdown] after="Watch a step, block by block" tags=["notes"]
# Follow the line on the right: it rises with each gather and falls with each free. In backward it is higher, as gradients and a block's
# activations are there too. In the end a rank holds its parts of the parameters and of the gradients.

# %% [markdown] after="## What it costs" tags=["notes"]
# Ask for the ratio of the two bars before you show them. Parameters, gradients and both moments are all sharded, so it is the number of
# ranks: four.

# %% [markdown] after="A step with your wrapper, block by block" tags=["notes"]
# Zoom into the forward pass: under each block is the gather of the next one, in the backward pass that of the one before. Between two blocks
# ranks are in `Wait` or, in backward, in `Reduce_scatter`. A gather ends only when its rank waits: this MPI moves data only in its calls
# (part 14), and four ranks share the cores. The table says how much was hidden all the same.

# %% [markdown] after="Draw the memory" tags=["notes"]
# About four to one. The bars do not show the step itself: up to two whole blocks, and the activations, which this method does not shard.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# Two gathers and a reduce-scatter are half again as many bytes as an all-reduce. Does a step have to wait for them?

# %% [markdown] tags=["fragment"]
# Not for the gathers, if a block computes for longer than the next one's gather takes: then the two run at the same time. But our `reduce`
# waits for its reduce-scatter; FSDP starts it, and goes on with the next block.

# %% [markdown] after="Beside PyTorch" tags=["notes"]
# Only with PyTorch installed. The losses agree to rounding errors in float32. What a rank keeps is nearly the same: a quarter of four arrays
# of the model's size, plus some padding.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: when the network is slow and you accumulate several micro-batches, because it saves a reduce-scatter in all but the last. For 2: half again as
# many, three times the model's size instead of twice. Flat arrays make a few large messages; many small ones would pay the latency every
# time.
