# %% [markdown] after="# 17 ZeRO as a schedule" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="In part 16 every rank held the whole model. A layer has $4096^2$ weights: 32 MiB in half precision, 32 MiB more for their gradients, and" tags=["notes"]
# Let the room add up a row: 256 MiB a layer, three quarters of it for the optimizer. Someone asks why a rank does not keep the weights from
# forward to backward: at the end of forward it would then have the whole model.

# %% [markdown] after="Shards of two layers" tags=["notes"]
# Ask before you run it: 16 or 32 MiB more? 32, because the gathered weight is a new buffer and the shard stays. Point at the names of the
# values: the simulator knows which shard is where, and refuses to compute with one.

# %% [markdown] after="Shards of two layers" tags=["slide"]
# ## A question for the room
#
# Which exchange makes a whole weight of shards, and which makes a shard of a gradient?

# %% [markdown] tags=["fragment"]
# All-gather, and reduce-scatter. Each is half of an all-reduce.

# %% [markdown] after="Gradients are sharded by `reduce_scatter(value, layer)`: rank i gets shard i of the sum over all ranks' samples. Gradients of the same shard" tags=["notes"]
# The common slip is to store the gathered weight over the shard, which is then missing at the update. Read the target as what the check
# allows: five whole weights leave room for the one in use, its gradient, and one that was gathered ahead.

# %% [markdown] after="Exercise: part1_training_loop" tags=["notes"]
# Point at the two all-gathers and at the reduce-scatter, which stands inside of the loop over micro-batches. Moving it behind that loop
# saves time, and then a rank holds whole gradients of all layers: 1.06 instead of 0.88 GiB on four ranks.

# %% [markdown] after="Check" tags=["notes"]
# One rank comes first: there ZeRO changes nothing, and a loop that fails here has another mistake. An all-reduce instead of the
# reduce-scatter gives the right weights and is found by its time.

# %% [markdown] after="Draw the schedule" tags=["notes"]
# Put it beside part 16, same ranks and samples: 25.9 instead of 17.6 ms, 0.88 instead of 2.34 GiB. Each forward box has a gap before it,
# where the weight is gathered; the saw-tooth in the memory is that weight coming and going.

# %% [markdown] after="Draw the schedule" tags=["slide"]
# ## A question for the room
#
# What could a rank do while it waits for a weight?

# %% [markdown] tags=["fragment"]
# Compute the layer before: ask for the next weight early, and await it late. That costs the memory of one more layer.

# %% [markdown] after="Draw the memory" tags=["notes"]
# 12.5, 3.5, 1.2 and 0.6 GiB: 64 times as many ranks, and a twentieth of the memory. Ask what is left on 64 ranks: of the state only 0.19
# GiB, so most of it is activations, 8 MiB for each of 48 layers.

# %% [markdown] after="Draw the utilisation" tags=["notes"]
# On 16 ranks an all-gather of a layer takes 1.0 ms, and so does forward of about 28 samples; below that the exchange is the longer part.
# Ask what became of part 16's gradient accumulation: it no longer saves any exchange.

# %% [markdown] after="Draw sixteen ranks" tags=["notes"]
# This is the bar for micro-batches of 16 seen from inside: 64% of the time is pale. Point at one backward box: the grey before it is the
# all-gather, the grey behind it the reduce-scatter. Nothing here overlaps yet.

# %% [markdown] after="Draw sixteen ranks" tags=["slide-50"]
# ## A question for the room
#
# Why does it become worse with small micro-batches?

# %% [markdown] tags=["fragment"]
# Each micro-batch moves all weights again. The fewer samples share that, the more the exchange weighs.

# %% [markdown] after="Stop the rank" tags=["notes"]
# Question 1: one more whole weight in memory, and it hides the exchange if computing a layer takes at least as long. Question 2: stages 1
# and 2 gather the weights once a step and not twice a micro-batch, so they are better where micro-batches are small and the weights fit.
