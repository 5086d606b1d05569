# %% Draw the cluster after="# 20 Your own strategy" tags=["given"]
# Draw the cluster
from course_lib.mesh import Mesh

plots.groups(Mesh(network=4, nvlink=8), "32 ranks: NVLink within a row, a slower network between rows")

# %% [markdown] after="# 20 Your own strategy" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="Anything that a real training step could do is allowed. Your loop is graded on two clusters, each with 2048 samples and `batch_size=64`:" tags=["notes"]
# Start with the last table: the same data parallel loop drops from 67% to 43%. With 64 ranks, each has half the samples, but a layer's
# all-reduce takes longer because its ring has more steps. If anyone asks about the ceiling: the simulator's matrix products reach 95% of
# the peak.

# %% [markdown] after="## Three tools" tags=["notes"]
# Students write `x = await model.all_gather(...)` out of habit, and then nothing overlaps. The exchange starts with the call; `await` only
# waits for it. "A single stream" means that an exchange queues behind those the rank started before it, so the order in which you start
# them matters.

# %% [markdown] after="Overlap" tags=["notes"]
# Ask for both times before you run it: the gather alone takes 1.0 ms, the four forwards 1.17 ms. If you await right away, they add up; if
# you await late, you pay only for the longer one. The exchange starts at the same point in both runs; only the `await` moves.

# %% [markdown] after="Overlap" tags=["slide"]
# ## A question for the room
#
# You have two exchanges and two computations. In which order would you start them?

# %% [markdown] tags=["fragment"]
# First whatever others are waiting for, and an exchange before any computation that does not need it.

# %% [markdown] after="**Groups.** A collective takes `ranks=`, the ranks that take part. NVLink connects ranks 0 to 7, 8 to 15, and so on. It is six and a half" tags=["notes"]
# A ring gather among n ranks has n - 1 steps, and each pays the latency: 31 steps of 20 µs on the network are 0.62 ms before you count a
# single byte. One rank outside the node is enough to put the whole group on the network.

# %% [markdown] after="Groups" tags=["notes"]
# Have the room put the three in order first. The surprise is the last line: four ranks on different nodes need 619 µs, eight ranks of one
# node 170 µs. So gather whole weights within a node, and let only shards cross the network.

# %% [markdown] after="Groups" tags=["slide"]
# ## A question for the room
#
# There are 32 ranks, 8 to a node. Which groups should stay within a node?

# %% [markdown] tags=["fragment"]
# Those that send the most, and most often: tensor parallel groups first, then ZeRO groups, and pipelines last.

# %% [markdown] after="**Recomputation.** If you have dropped an activation, you can get it back by running forward again from one that you kept. This saves" tags=["notes"]
# Recomputing everything adds one more forward: a third of forward plus backward (half of backward), so about 71% MFU at best, three quarters
# of 95%. The solution does without it, and holds 37 GiB and 10 GiB. Give the room two minutes for the estimate in "Your turn": it decides
# what is worth building.

# %% [markdown] after="Exercise: part4_training_loop" tags=["notes"]
# Follow one layer through `go_on`: a reduce-scatter within the node, an all-reduce of the shards across nodes, the update, an all-gather
# within the node. Each is awaited only after another layer's backward has run. Without the exchange across nodes, each node would train on
# its own samples only.

# %% [markdown] after="## How does it do?" tags=["notes"]
# The solution reaches 92.8% and 90.0% MFU with 37 and 10 GiB: full score on both. Before you show the pictures, ask where the rest of the
# 95% goes.

# %% [markdown] after="Draw 32 ranks" tags=["notes"]
# Point at the grey strip on the left: all ranks wait 8 ms for their inputs from the host. The thin bars are the exchanges, each
# hidden behind the backward of the layers that follow. Smaller micro-batches would shorten the strip: a rank could start on the first while
# the others arrive.

# %% [markdown] after="Draw 32 ranks" tags=["slide-50"]
# ## A question for the room
#
# What would you give up first if you ran out of memory?

# %% [markdown] tags=["fragment"]
# Time: recompute activations. It costs one extra forward, a third of forward plus backward, and frees most of the activations.

# %% [markdown] after="Draw 64 ranks" tags=["notes"]
# A rank has half the samples and half the layers, so a quarter of the work: whatever cannot be hidden weighs more. Here the wait for the
# inputs is 4 of 119 ms; on the other cluster it was 8 of 460. A ring over all 64 ranks would not be hidden either: its all-reduce takes
# 4.0 ms, a layer's backward 2.3 ms.

# %% [markdown] after="With four ranks and eight layers, you can see the details." tags=["notes"]
# Follow one layer: its backward in orange, then its exchange, a thin bar below the next orange box, then its update in green. The solution
# shards only in groups of eight, so with four ranks the only exchange is an all-reduce among all of them. Memory grows by one activation
# per layer, and the last updates on the right have nothing left to hide behind.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Ask how a state of 16 GiB, most of it sharded, turns into 37 GiB: 64 layers keep an activation of 0.5 GiB each. So more sharding would
# gain little here, and recomputation or smaller micro-batches a lot.

# %% [markdown] after="Your handle" tags=["notes"]
# Skip this unless your class has a leaderboard. It shows the handle, MFU, memory, time, score and a small curve of how busy the ranks are,
# but not the code.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For the second half of 1: with 16 GiB, start with smaller micro-batches, because they cost the least. For 2: when it makes room for
# something that gains more, or when nothing else fits. For 3, good answers are slow ranks and messages that share a link: in the simulator,
# each rank has the full bandwidth to itself.
