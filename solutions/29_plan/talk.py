# %% [markdown] after="# 29 Plan a run" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key. The map of all grids takes about five seconds.

# %% [markdown] after="In parts [16](16_training_step.ipynb) to [20](20_custom_strategy.ipynb) one matrix was a layer. Here the simulator knows the transformer's" tags=["notes"]
# Go down the table and ask for each row what it saves and what it costs. Only `interleave` is new: draw eight layers on four ranks, and let
# the room say which two rank 1 has, the second and the sixth.

# %% [markdown] after="Look at a step" tags=["notes"]
# Ask for a guess of the MFU first. It prints 48.8 s, 50 % and 64 GiB of 80. Then add `sharded_optimizer=True`: 36 GiB in the same time, as
# it costs no more bytes on the wire.

# %% [markdown] after="Look at a step" tags=["slide"]
# ## A question for the room
#
# 7 billion parameters: how many bytes are that in training, before a single text has been read?

# %% [markdown] tags=["fragment"]
# 18 for each, 126 GB: weights in 16 bits, gradients in 32, and for Adam a copy and two moments, in 32 bits each.

# %% [markdown] after="## How far can it be trusted?" tags=["notes"]
# Say what is fitted and what is predicted: two numbers come from the 22B model alone. So the other six rows are a real test: the largest
# model is more than forty times the size.

# %% [markdown] after="Compare with what was measured" tags=["notes"]
# The worst of the six is 5.2 % off, the mean 2.7 %. Point at the signs: the simulator is too fast each time. That is what to expect of a
# simulator that leaves things out.

# %% [markdown] after="Draw them" tags=["notes"]
# Both axes are logarithmic, and on such axes almost everything lies on the line. Read the percentages, and tell students to distrust a plot
# like this without them.

# %% [markdown] after="## A worked example: when does an axis get bound by its exchanges?" tags=["notes"]
# Derive the first line on the board: $72\, s b h^2 / t$ FLOP, and four ring all-reduces, each with $2 (t - 1) / t$ times $2 s b h$ bytes.
# Ask which formula does not contain the width: that of data.

# %% [markdown] after="Count FLOP for a byte" tags=["notes"]
# Compare with the last two lines: tensor has 3,950, above the 1,209 of a node and below the 12,577 of the network. So tensor must stay
# inside, and the other two may leave.

# %% [markdown] after="Draw the roofline" tags=["notes"]
# Follow the line of tensor down to the dashed roof: on the network, a device would reach at most 31 % of its peak. Pipeline is a hundred
# times to the right of the corner, so it is the axis for the slowest link.

# %% [markdown] after="Draw the roofline" tags=["slide-50"]
# ## A question for the room
#
# Twice as wide a model sends twice as much for each position. Why does it wait less all the same?

# %% [markdown] tags=["fragment"]
# Arithmetic grows with the square of the width, messages with the width.

# %% [markdown] after="What is to the right of a roof's corner *can* be hidden behind arithmetic. It is not always: a tensor parallel rank needs the sum before" tags=["notes"]
# Put in a number: with 64 texts instead of 512, data comes down to 6,144, left of the network's corner. It is why more devices for the same
# batch stop paying.

# %% [markdown] after="## What fills the memory?" tags=["notes"]
# Ask first: which axis divides the weights (tensor and pipeline), which the activations (tensor, but not pipeline), and which neither
# (data, unless the optimizer is sharded)? Then see who was right.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Compare t 8 with p 8: about the same weights, but 130 GiB instead of 61, as the first stage has eight micro-batches in flight. Full
# recomputation holds least, 48 GiB, and takes longest, 12.4 s against 9.2 s. Sharding the optimizer does not help p 8 below 80: activations
# are the problem.

# %% [markdown] after="## Your turn: plan" tags=["notes"]
# Collect what may be left out: tensor beyond a node, pipelines that do not divide the layers, an optimizer that is not sharded although it
# could be. The plan is a filter with `estimate`, and then a few exact simulations.

# %% [markdown] after="Exercise: plan" tags=["notes"]
# Point at 1.03: `estimate` is a hundredth off, so near misses stay in, and `fits` decides. The usual loss of points: leaving an axis out,
# such as interleave, sequence parallel, or micro-batches that are no power of two. The check takes several seconds.

# %% [markdown] after="## All grids" tags=["notes"]
# Let the room bet on a box before the map: write down t and p for 1,024 devices, 128 nodes of eight. Say that d follows from both.

# %% [markdown] after="Draw the map" tags=["notes"]
# The best is t 4 × p 8 × d 32 with 17.25 s. Hatched is the upper left, where t times p is too small for the model's state. Around the best
# the map is flat: t 4 × p 16 and t 8 × p 4 lose less than 5 %.

# %% [markdown] after="Draw the map" tags=["slide"]
# ## A question for the room
#
# Why is the fastest grid neither in a corner nor at an edge?

# %% [markdown] tags=["fragment"]
# Each axis costs more, the longer it gets: tensor by its exchanges, pipeline by its bubbles. And the
# longer the data axis is, the fewer devices are left to share the model's memory.

# %% [markdown] after="## The winner" tags=["notes"]
# Collect guesses for where it is pale: at the start and the end, from the pipeline. And ask which stage needs the most memory: the first,
# which has most micro-batches in flight.

# %% [markdown] after="Draw the winner" tags=["notes"]
# 17.2 s, MFU 61.5 %, 75.4 of 80 GiB: the memory's plateau is close to the dotted line, and that is what the search made use of. The grey
# marks under the last orange are the replicas' exchanges, begun as soon as a piece's gradients are there; only the last ones stick out at
# the end.

# %% [markdown] after="## What does it cost?" tags=["notes"]
# Take bets in days before you run it. Then ask what is missing in the number: restarts, failed machines, evaluations, and the runs that
# came before.

# %% [markdown] after="Count days and money" tags=["notes"]
# 19.0 days on 1,024 devices, 935,391 at 2 an hour. Change the price to yours. Each per cent of MFU is worth about 15,000 here, so the per
# cents that part 20 was about are worth some work.

# %% [markdown] after="## From a shell" tags=["notes"]
# For 1: tensor is inside a node and does not feel it; data shrinks, and pipeline, which sends least, grows. For 2: slow and failing
# devices, and traffic that shares links. For 3: each replica has half as many texts, so bubbles and exchanges weigh more.
