# %% [markdown] after="# 25 A pipeline on real ranks" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer. The last two measurements take a few seconds.

# %% [markdown] after="The model is a small GPT: tokens become vectors, eight transformer blocks work on them, and a final matrix turns them into logits. Each of" tags=["notes"]
# The bars on the title slide are nearly equal, because the vocabulary has only 64 words. With 50,000 words, the first and the last stage
# would be much heavier. Stress what is new: no collectives, only messages between neighbours.

# %% [markdown] after="## A worked example: one batch, forward" tags=["notes"]
# The answer is in the code: rank 3 sits in `Recv` until rank 2 has sent. `buffer` is needed because a receiver must have an array of the
# right shape before anything arrives.

# %% [markdown] after="Forward, one after the other" tags=["notes"]
# All ranks run this same cell; the `if`s make them differ. Only rank 3 prints: a loss of 4.62, half a nat above the guess of 4.16, because
# random logits are worse than equal ones. In the picture, a blue staircase: at any time only one rank works, and the others wait. Ask what
# each rank could do in the hatched part, and keep the answers for the next slide.

# %% [markdown] after="Forward, one after the other" tags=["slide"]
# ## A question for the room
#
# Each rank waits three quarters of the time. What would help?

# %% [markdown] tags=["fragment"]
# More work: while rank 1 has the first micro-batch, rank 0 can start on the second.

# %% [markdown] after="## Your turn: GPipe" tags=["notes"]
# Draw four rows on the board and let the room fill in micro-batches. The bubble fraction is $(p - 1) / (m + p - 1)$: with four ranks and
# eight micro-batches, 3 of 11.

# %% [markdown] after="Exercise: gpipe_step" tags=["notes"]
# Point at `Send` right after the computation. Sending after all forwards gives the right numbers, too, but then the ranks work one after
# another. `share` is used only on the last rank; dividing on every rank makes the gradients too small, the more so the earlier the stage.

# %% [markdown] after="Check GPipe" tags=["slide-50"]
# ## A question for the room
#
# Where is the loss divided by the number of micro-batches, and why only there?

# %% [markdown] tags=["fragment"]
# On the last rank, before backward starts. All gradients that follow are linear in the loss's, so they are divided along with it.

# %% [markdown] after="## Your turn: 1F1B" tags=["notes"]
# Ask what rank 3 does first: one forward, and then its backward immediately. Rank 0 runs three forwards ahead. Warn about the deadlock:
# with small arrays, two blocking sends work; above 64 KB both wait, so the mistake may only show up in a larger model.

# %% [markdown] after="Exercise: one_forward_one_backward_step" tags=["notes"]
# `ahead` is the warm-up, p - r - 1. In the loop, a forward comes first, and then the backward of the oldest micro-batch. The `Wait` calls
# come at the end, which is safe only because each message has an array of its own; a single buffer for all of them would change while
# it is being sent.

# %% [markdown] after="Watch both schedules" tags=["notes"]
# Stop at the first step in which the two differ: in 1F1B the last rank goes backward at once, and from then on no rank holds more. Both
# are over in the same step. The frames show the order, not the time: a backward takes about twice as long as a forward.

# %% [markdown] after="## Measured and simulated" tags=["notes"]
# Calibration uses all ranks at once, because they share the memory bandwidth: a rank on its own would look too fast. On a laptop with fewer
# than four cores, two ranks are measured; say so before the room counts rows.

# %% [markdown] after="Time both orders, and draw them" tags=["notes"]
# This takes a few seconds. First compare measured with simulated: the title says how far apart they are. Then compare GPipe with 1F1B.
# GPipe has all its blue before its orange, 1F1B mixes them, and both end at about the same time.

# %% [markdown] after="Time both orders, and draw them" tags=["slide-50"]
# ## A question for the room
#
# GPipe and 1F1B take the same time. So why does nobody use GPipe?

# %% [markdown] tags=["fragment"]
# Because of memory: bubbles shrink with more micro-batches, and in GPipe the activations of every one of them are in memory.

# %% [markdown] after="## One slow stage" tags=["notes"]
# Collect guesses. The slowest stage sets the pace: 8 times 120 ms for it, and the time until the first micro-batch arrives and after the
# last one leaves, 1060 ms instead of 660. The ranks compute 57 instead of 73 percent of the time: three of them wait for one.

# %% [markdown] after="Slow one stage down" tags=["notes"]
# Change `slow` to 0 and to 3: 1020 and 1140 ms, and the hatching moves. Then try a factor of 1.25: even that costs all
# four ranks 120 ms in 660.

# %% [markdown] after="Draw the slow stage" tags=["notes"]
# The slow rank never waits in the middle, all others do. What helps is to move a layer to another rank: that is why the first and the last
# stage often get fewer blocks. More micro-batches hardly help: they shorten only the beginning and the end.

# %% [markdown] after="## What it costs" tags=["notes"]
# Ask for the shapes of both curves before you draw them, and where 1F1B stops growing: at four micro-batches, because rank 0 of four has at
# most four in flight.

# %% [markdown] after="Measure the memory" tags=["notes"]
# GPipe is a straight line; 1F1B follows it up to four micro-batches and then stays flat. That is the answer to the last question for the
# room, now measured.

# %% [markdown] after="Count the bytes" tags=["notes"]
# First ask why the bars differ: rank 0 sends only activations, rank 3 only gradients, and those in between send both. One message is 66 kB
# here: 2 texts of 64 positions, width 128, float32. It grows with those, and not with the layers of a stage.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: the others still have forwards and backwards to do. Newer schedules split a rank's layers into several pieces, or compute the
# weights' gradients later. For 2: bubbles, a number of stages that is limited by the number of layers, and activations that do not shrink
# on the first rank. For 3: about 10 % in both, as everybody waits for the slowest. In data parallel training, that device could get
# fewer samples; in a pipeline, fewer layers.
