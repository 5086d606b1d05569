# %% Draw a step of a large model after="# 29 Plan a run" tags=["given"]
# Draw a step of a large model
run = reference_data.MEASURED[2]
pictures.timeline(simulate(run.model, run.cluster, run.configuration), f"{run.model.name} on {run.configuration.gpus} devices")

# %% [markdown] after="# 29 Plan a run" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer. The map of all grids takes about five seconds.

# %% [markdown] after="In parts [16](16_training_step.ipynb) to [20](20_custom_strategy.ipynb), a layer was a single matrix. Here the simulator knows transformer" tags=["notes"]
# Go down the table and ask for each row what it saves and what it costs. Only `interleave` is new: draw eight layers on four ranks, and let
# the room say which two rank 1 has: the second and the sixth.

# %% [markdown] after="Look at a step" tags=["notes"]
# Ask for a guess of the MFU first. It prints 46.9 s, 48% and 65 GiB of 80. Then add `sharded_optimizer=True`: 36 GiB in the same time,
# because it puts no more bytes on the wire.

# %% [markdown] after="Look at a step" tags=["slide"]
# ## A question for the room
#
# 7 billion parameters: how many bytes is that in training, before a single text has been read?

# %% [markdown] tags=["fragment"]
# 18 per parameter, 126 GB in all: weights in 16 bits, gradients in 32, and for Adam a copy and two moments, in 32 bits each. With gradients in
# 16 bits, as in part 16, it is 16.

# %% [markdown] after="## How far can you trust it?" tags=["notes"]
# Say what is fitted and what is predicted: one number comes from the 22B model alone. So the other six rows are a real test: the largest
# model is more than forty times that size.

# %% [markdown] after="Compare with what was measured" tags=["notes"]
# The worst of the six is 3.6% off, the mean is 1.8%. Point at the signs: some are too fast, some too slow. A simulator that leaves
# things out is too fast each time; `make validate` shows 31 more rows, and what each effect in the simulator is worth.

# %% [markdown] after="Draw them" tags=["notes"]
# Both axes are logarithmic, and on such axes almost everything lies on the line. Read out the percentages, and tell students to distrust a
# plot like this without them.

# %% [markdown] after="## A worked example: when is an axis bound by communication?" tags=["notes"]
# Derive the first line on the board: $72\, s b h^2 / t$ FLOP, and four ring all-reduces, each with $2 (t - 1) / t$ times $2 s b h$ bytes.
# Ask which formula does not contain the width: the one for data. In pipeline, the two t cancel only with scatter/gather: a t-th of the FLOP, a
# t-th of the bytes.

# %% [markdown] after="Count FLOP for a byte" tags=["notes"]
# Compare with the last two lines: tensor has 3,950, above the 1,209 of a node and below the 12,577 of the network. So tensor must stay
# inside the node, and the other two may leave it.

# %% [markdown] after="Draw the roofline" tags=["notes"]
# Follow the tensor line down to the dashed roof: on the network, a device would reach at most 31% of its peak. Pipeline is a hundred times
# further to the right than the corner, so it is the axis for the slowest link.

# %% [markdown] after="Draw the roofline" tags=["slide-50"]
# ## A question for the room
#
# A model that is twice as wide sends twice as much per position. Why does it still wait less?

# %% [markdown] tags=["fragment"]
# Arithmetic grows with the square of the width, messages only with the width.

# %% [markdown] after="Whatever lies to the right of a roof's corner *can* be hidden behind computation, but is not always: a tensor parallel rank needs the sum" tags=["notes"]
# Give a number: with 64 texts instead of 512, data comes down to 6,144, left of the network's corner. That is why more devices for the same
# batch stop paying off.

# %% [markdown] after="## What fills the memory?" tags=["notes"]
# Ask first: which axis divides the weights (tensor and pipeline), which the activations (tensor, but not pipeline), and which neither
# (data, unless the optimizer state is sharded)? Then see who was right.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Compare t 8 with p 8: about the same weights, but 130 GiB instead of 61, because the first stage has eight micro-batches in flight. Full
# recomputation holds the least, 48 GiB, and takes the longest, 13.0 s against 9.4 s. Sharding the optimizer state does not bring p 8 below
# 80: activations are the problem.

# %% [markdown] after="## Your turn: plan" tags=["notes"]
# Collect what can be left out: tensor beyond a node, pipelines that do not divide the layers, an optimizer state that is not sharded
# although it could be. The plan is a filter with `estimate`, followed by a few exact simulations.

# %% [markdown] after="Exercise: plan" tags=["notes"]
# Point at 1.03: `estimate` is up to 1% off, so near misses stay in, and `fits` decides. Points are usually lost by leaving out an axis,
# such as interleave, sequence parallel, or micro-batches that are not a power of two. The check takes several seconds.

# %% [markdown] after="## All grids" tags=["notes"]
# Let the room bet on a box before you show the map: write down t and p for 1,024 devices, 128 nodes of eight. Say that d follows from the
# two.

# %% [markdown] after="Draw the map" tags=["notes"]
# The best is t 4 × p 8 × d 32 with 18.2 s. The upper left is hatched, where t times p is too small for the model's state. Around the best,
# the map is flat: t 4 × p 16 and t 8 × p 4 lose less than 5%.

# %% [markdown] after="Draw the map" tags=["slide"]
# ## A question for the room
#
# Why is the fastest grid neither in a corner nor at an edge?

# %% [markdown] tags=["fragment"]
# Each axis costs more the longer it gets: tensor because of its exchanges, pipeline because of its bubbles. And the longer the data axis,
# the fewer devices are left to share the model's memory.

# %% [markdown] after="## The winner" tags=["notes"]
# Collect guesses for where stages wait: at the start and the end, because of the pipeline. And ask which stage needs the most memory: the
# first, which has the most micro-batches in flight.

# %% [markdown] after="Draw the winner" tags=["notes"]
# 18.2 s, MFU 58.3%, 75.4 of 80 GiB: the plateau of the memory is close to the dotted line, so the search has made good use of the memory.
# The thin bars under the last orange ones are the replicas' exchanges, started as soon as a piece's gradients are there; only the last
# ones stick out at the end.

# %% [markdown] after="## What does it cost?" tags=["notes"]
# Take bets in days before you run it. Then ask what the number leaves out: restarts, failed machines, evaluations, and the runs that came
# before.

# %% [markdown] after="Count days and money" tags=["notes"]
# 20.1 days on 1,024 devices, 987,061 at 2 an hour. Change the price to yours. Each point of MFU is worth about 17,000 here, so the points
# that part 20 was about are worth some work.

# %% [markdown] after="## From a shell" tags=["notes"]
# `--page` writes sliders to move in front of the room; choose "plain" first. With the 22B model and 64 texts on 16 devices, as in the notebook,
# pipeline 16 has 30% of its time in the bubble and still does not fit.
#
# For 1: tensor stays inside a node and does not feel it; data shrinks, and pipeline, which sends the least, grows. For 2: slow and failing
# devices, and traffic that shares links. For 3: each replica has half as many texts, so bubbles and communication weigh more.
