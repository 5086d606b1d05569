# %% [markdown] after="# 20 Your own strategy" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Everything is allowed that a real training step could do. Your loop is graded on two clusters, each with 2048 samples and `batch_size=64`:" tags=["notes"]
# Look at the last table first: the same data parallel loop falls from 66 % to 43 %. With 64 ranks, each has half the samples, while the
# all-reduce of a layer takes longer, as its ring has more steps. If somebody asks for the ceiling: the simulator's matrix products reach 95
# % of the peak.

# %% [markdown] after="## Three tools" tags=["notes"]
# Students write `x = await model.all_gather(...)` out of habit, and nothing overlaps: the exchange begins with the call, `await` only waits
# for it. "One stream" means that an exchange queues behind those that the rank has started before, so the order of the starts counts.

# %% [markdown] after="Overlap" tags=["notes"]
# Ask for both times before you run it: the gather alone takes 1.0 ms, the four forwards 1.16 ms. Awaited at once, they add up; awaited
# late, only the longer one is left. The exchange begins at the same place in both runs, only the `await` moves.

# %% [markdown] after="Overlap" tags=["slide"]
# ## A question for the room
#
# Two exchanges and two computations. In which order would you start them?

# %% [markdown] tags=["fragment"]
# What others wait for first, and an exchange before the computation that does not need it.

# %% [markdown] after="**Groups.** A collective takes `ranks=`, those that take part. NVLink joins ranks 0 to 7, 8 to 15, and so on: six and a half times as fast" tags=["notes"]
# A ring gather among n ranks has n - 1 steps, and each pays the latency: 31 steps of 20 µs on the network are 0.62 ms before any bytes
# count. One rank outside the machine is enough to put the whole group on the network.

# %% [markdown] after="Groups" tags=["notes"]
# Have the room put the three in order first. The surprise is the last line: four ranks on different machines need 619 µs, eight ranks of
# one machine 170 µs. So gather whole weights inside a machine, and let only shards cross the network.

# %% [markdown] after="Groups" tags=["slide"]
# ## A question for the room
#
# 32 ranks with 8 on a machine. Which of the groups should be inside a machine?

# %% [markdown] tags=["fragment"]
# Those that send most, and most often: tensor parallel before ZeRO before pipeline.

# %% [markdown] after="**Recomputation.** An activation that you have dropped can be had again: go forward once more from one that you kept. It costs time, which" tags=["notes"]
# Recomputing everything adds a forward to a forward and a backward of twice its size: a third more arithmetic, so at best about 71 % MFU.
# The solution does without, and holds 37 GiB and 10 GiB. Give the room two minutes for the estimate in "Your turn"; it decides what is
# worth building.

# %% [markdown] after="Exercise: part4_training_loop" tags=["notes"]
# Follow one layer through `go_on`: a reduce-scatter in the machine, an all-reduce of the shards across, the update, an all-gather in the
# machine. Each is awaited only when another layer's backward has run. Without the exchange across, each machine trains on its own samples
# only.

# %% [markdown] after="## How does it do?" tags=["notes"]
# The solution reaches 92.7 % and 89.9 % MFU with 37 and 10 GiB, full score on both. Ask where the rest up to 95 % goes, before you show the
# pictures.

# %% [markdown] after="Draw 32 ranks" tags=["notes"]
# Point at the pale strip on the left: all ranks wait 8 ms for their inputs from the host. The small grey marks are the exchanges, each
# under the backward of the layers that follow. Smaller micro-batches would shorten the strip: a rank can begin with the first while the
# others arrive.

# %% [markdown] after="Draw 32 ranks" tags=["slide-50"]
# ## A question for the room
#
# What would you give up first if memory ran out?

# %% [markdown] tags=["fragment"]
# Time: recompute activations. It costs one forward more, half of a backward, and frees most of the activations.

# %% [markdown] after="Draw 64 ranks" tags=["notes"]
# A rank has half the samples and half the layers, so a quarter of the work: what cannot hide weighs more. Here the wait for the inputs is 4
# of 117 ms, on the other cluster 8 of 455. A ring over all 64 ranks would not hide either: its all-reduce takes 4.0 ms, a layer's backward
# 2.3 ms.

# %% [markdown] after="With four ranks and eight layers, one sees the details." tags=["notes"]
# Follow one layer: orange, then grey below the next orange, then green. The solution shards only in groups of eight, so with four ranks the
# only exchange is an all-reduce among all of them. The memory climbs by one activation for each layer, and the last updates on the right
# have nothing left to hide behind.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Ask what makes 37 GiB out of a state of 16 GiB whose largest part is sharded: 64 layers keep an activation of 0.5 GiB each. So sharding
# more would gain little here, and recomputation or smaller micro-batches much.

# %% [markdown] after="Your handle" tags=["notes"]
# Leave this out unless your class has a leaderboard. What is shown is the handle, MFU, memory, time, score and a small curve; the code is
# not.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For the second half of 1: with 16 GiB, smaller micro-batches come first, as they cost least. For 2: when it makes room for something that
# gains more, or when nothing else fits. For 3, wait for slow ranks and for messages that share a link: here each rank has the full
# bandwidth to itself.
