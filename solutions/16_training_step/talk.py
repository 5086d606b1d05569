# ---
# jupyter:
#   course:
#     picture: run-it-on-four-ranks
# ---

# %% [markdown] after="# 16 A training step, simulated" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="## What is simulated" tags=["notes"]
# Ask why backward costs twice as much: it computes two products, one for the gradient of the input and one for that of the weight. The
# clock is virtual, so every laptop in the room shows the same numbers. Even a device that never waits reaches at most 95% here.

# %% [markdown] after="## What a loop can do" tags=["notes"]
# Do not read the table out. Point at the word `await`, which marks where a rank may have to wait for others, and at the last sentence: that
# is how memory is counted up to part 20.

# %% [markdown] after="## A worked example: data parallel training" tags=["notes"]
# Ask how often a layer's gradient crosses the network in a step with four micro-batches: once. Gradient accumulation is cheap because the
# gradients are added up first and communicated afterwards.

# %% [markdown] after="Data parallel training" tags=["notes"]
# Let the room find the only `await`: it is in the last loop, after all micro-batches. Then point at each `pop` and at the `del`; the second
# example is this loop without them.

# %% [markdown] after="Run it on four ranks" tags=["notes"]
# Point at the start, where all ranks wait for their input, and at the end, where all-reduce and update alternate eight times. The boxes of
# all ranks line up exactly. Ask whether they would on a real machine; the next question is about that.

# %% [markdown] after="Run it on four ranks" tags=["slide"]
# ## A question for the room
#
# One of the ranks is ten percent slower. How long does the step take?

# %% [markdown] tags=["fragment"]
# As long as the slow rank takes: all the others wait for it in the all-reduce.

# %% [markdown] after="Each row is a rank, and each box is a micro-batch with its number. At the grey box a rank waits for its inputs, and at the dark blue ones" tags=["notes"]
# Look at the memory in the first backward: it stays flat, because each layer gives up an activation of 32 MiB and gains a gradient of 32
# MiB. From the second micro-batch on, gradients are added in place, so it falls. Collect guesses for the loop that frees nothing.

# %% [markdown] after="The same, without freeing" tags=["notes"]
# Most people expect four micro-batches of activations to pile up. They do not: the key is the layer, so each micro-batch replaces the
# previous one's activation. In part 19 the micro-batch is part of the key.

# %% [markdown] after="Draw the memory" tags=["notes"]
# 2.34 against 2.62 GiB: a smaller difference than most people guess. What is left over is the activations of one micro-batch and their
# gradients, nine of each. The time is the same in both runs; freeing costs nothing.

# %% [markdown] after="Draw the memory" tags=["slide"]
# ## A question for the room
#
# What is the largest part of this memory: weights, gradients, Adam's state or activations?

# %% [markdown] tags=["fragment"]
# The optimizer's state: a float32 copy of the weights and Adam's two moments take 12 bytes per weight, 1.5 GiB here. Only the activations
# depend on the micro-batch.

# %% [markdown] after="Several sizes" tags=["notes"]
# Each run processes 16 samples on each rank, in anything from 16 micro-batches to one; the all-reduce at the end is the same. Let everyone
# bet on a size before the next picture.

# %% [markdown] after="Draw utilization by size" tags=["notes"]
# Micro-batches of 2 and 4 win, both with 75.7%. Below that, the matrix products are too small; above it, waiting for the first input costs
# more than the larger products save. With 16 samples at once, a rank waits 2.1 ms before it can begin.

# %% [markdown] after="Draw memory by size" tags=["notes"]
# From 1 to 16 samples, the memory grows from 2.1 to 3.0 GiB, not by a factor of 16. Ask where the rest comes from: 8 layers of 256 MiB for
# weights, gradients and Adam's state, whatever the size of the micro-batch.

# %% [markdown] after="Draw memory by size" tags=["slide-50"]
# ## A question for the room
#
# If the micro-batches are twice as large, what happens to the time, and what happens to the memory?

# %% [markdown] tags=["fragment"]
# The device is used better, up to a point; but the first input arrives later, and nobody can compute without it. The activations take twice
# the memory.

# %% [markdown] after="## When a loop is wrong" tags=["notes"]
# Ask what the same mistake looks like on a real cluster: all the other GPUs wait in NCCL until a timeout, and the message does not say
# which rank is missing or why. That is what a simulator is good for.

# %% [markdown] after="A rank that leaves early" tags=["notes"]
# Read the message aloud: who waits, where, for whom, and what that rank is doing. Then try the change from the text: now rank 2 is stopped
# at its update, because its gradient lacks the samples of ranks 0, 1 and 3.

# %% [markdown] after="Sixteen ranks" tags=["notes"]
# Forward and backward take as long as on four ranks; only the end has grown. An all-reduce of one layer takes 2.0 ms instead of 0.23 ms,
# since the ring now has to use the network. MFU falls from 76 to 42%.

# %% [markdown] after="Sixty-four ranks" tags=["notes"]
# More than half of the step is communication: 32 layers at 4 ms each. Ask what would help without a faster network: more samples per step,
# or communication that starts during backward.

# %% [markdown] after="## When does a step wait for the network?" tags=["notes"]
# If the room has done part 00, ask for its two numbers first. Then let it count the FLOP of one weight: 2 per token forward, 4 backward, for
# 2 bytes of gradient. The width of the layer cancels; only the tokens between two all-reduces are left.

# %% [markdown] after="Where both take equally long" tags=["notes"]
# From 4 to 16 ranks, the bandwidth falls by a factor of eight, as the ring leaves NVLink. From 16 to 64 it hardly changes, but alpha is four
# times as large: the ring has four times as many steps. For a laptop of part 00 (40 microseconds, 1.2 GB/s, 20 GFLOP/s) the answer is
# 0.005 samples: a slow device never waits.

# %% [markdown] after="The two limits form a **roofline** (Williams et al., 2009): below the ridge, MFU is limited by the network and grows with $B$; beyond it, by" tags=["notes"]
# Take a vote. At the ridge, computing and communicating take equally long, so a loop that does one after the other reaches half of the
# roof. The runs take a second or two.

# %% [markdown] after="Draw the roofline" tags=["notes"]
# Far from the ridge, on either side, the loop is close to its roof: overlap gains most near the ridge, at most a factor of two. On 4 ranks
# the loop loses more: there, the first input and the update count, too. For more samples per rank at the same global batch, use fewer ranks.

# %% [markdown] after="Write a trace" tags=["notes"]
# Show it in Perfetto if you have a minute: PyTorch's profiler writes the same format, so the students will meet it again. The file is from
# the run on four ranks.

# %% [markdown] after="Stop the rank" tags=["notes"]
# Question 1: start each layer's all-reduce as soon as the last micro-batch's backward has passed it; much of the communication is then
# hidden. Question 2: shard the states, so that each rank updates its part and the parts are gathered. That leads to part 17. Question 3:
# behind the last micro-batch's backward only, a quarter of two thirds, one sixth of the computation: the sums are not complete before.
