# %% Draw a sharded weight after="# 17 ZeRO as a schedule" tags=["given"]
# Draw a sharded weight
import numpy as np

weight = np.arange(96).reshape(8, 12)
plots.holdings(weight, np.split(weight, 4), "A layer's weight, sharded over four ranks")

# %% [markdown] after="# 17 ZeRO as a schedule" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="In part 16, every rank held the whole model. A layer has $4096^2$ weights: 32 MiB in half precision, 32 MiB more for their gradients, and" tags=["notes"]
# Let the room add up a row: 256 MiB per layer, three quarters of it for the optimizer. Someone will ask why a rank does not keep the
# weights from forward to backward: at the end of forward it would then have the whole model.

# %% [markdown] after="Shards of two layers" tags=["notes"]
# Ask before you run it: 16 or 32 MiB more? 32, because the gathered weight is a new buffer and the shard stays. Point at the names of the
# values: the simulator knows which shard is where, and refuses to compute with a single one.

# %% [markdown] after="Shards of two layers" tags=["slide"]
# ## A question for the room
#
# Which collective makes a whole weight out of shards, and which one turns gradients into shards?

# %% [markdown] tags=["fragment"]
# All-gather and reduce-scatter. Each is half of an all-reduce.

# %% [markdown] after="`reduce_scatter(value, layer)` shards the gradients: rank i gets shard i of the sum over all ranks' samples. Gradients of the same shard" tags=["notes"]
# The usual slip is to overwrite the shard with the gathered weight, so that the shard is missing at the update. Read the target as what the
# check allows: five whole weights leave room for the one in use, its gradient, and one that was gathered in advance.

# %% [markdown] after="Exercise: part1_training_loop" tags=["notes"]
# Point at the two all-gathers and at the reduce-scatter, which is inside the loop over micro-batches. Moving it out of that loop saves
# time, but then a rank holds whole gradients of all layers: 1.06 instead of 0.88 GiB on four ranks.

# %% [markdown] after="Check" tags=["notes"]
# The one-rank case comes first: ZeRO changes nothing there, so a loop that fails has some other mistake. An all-reduce instead of the
# reduce-scatter gives the right weights; its time gives it away.

# %% [markdown] after="Draw the schedule" tags=["notes"]
# Put it next to part 16, with the same ranks and samples: 26.0 instead of 17.6 ms, 0.88 instead of 2.34 GiB. Each forward box has a gap
# before it, where the weight is gathered; the sawtooth in the memory is that weight coming and going.

# %% [markdown] after="Draw the schedule" tags=["slide"]
# ## A question for the room
#
# What could a rank do while it waits for a weight?

# %% [markdown] tags=["fragment"]
# Compute the previous layer: start the next all-gather early, and await it late. That costs the memory of one more layer.

# %% [markdown] after="Draw the memory" tags=["notes"]
# 12.5, 3.5, 1.2 and 0.6 GiB: 64 times as many ranks, and a twentieth of the memory. Ask what is left on 64 ranks: only 0.19 GiB of state,
# so most of it is activations, 8 MiB for each of 48 layers.

# %% [markdown] after="Draw the utilization" tags=["notes"]
# On 16 ranks, the all-gather of a layer takes 1.0 ms, and so does the forward of about 28 samples; below that, communication takes longer.
# Ask what became of part 16's gradient accumulation: it no longer saves any communication.

# %% [markdown] after="Draw sixteen ranks" tags=["notes"]
# This is the run behind the bar for micro-batches of 16: almost two thirds of the picture is transfers. Point at one backward box: before
# it is the all-gather, after it the reduce-scatter. Nothing overlaps here yet.

# %% [markdown] after="Draw sixteen ranks" tags=["slide-50"]
# ## A question for the room
#
# Why does communication take up more of the time when micro-batches are small?

# %% [markdown] tags=["fragment"]
# Each micro-batch moves all the weights again. With fewer samples to share that cost, more of the time goes into communication.

# %% [markdown] after="Stop the rank" tags=["notes"]
# Question 1: one more whole weight in memory, and it hides the communication if computing a layer takes at least as long. Question 2:
# stages 1 and 2 gather the weights once per step rather than twice per micro-batch, so they are better when micro-batches are small and the
# weights fit.
