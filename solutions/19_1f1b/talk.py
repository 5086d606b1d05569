# %% [markdown] after="# 19 One forward, one backward" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. Point at the last rank's first backward in the picture, and ask what each rank can
# do next. There are three questions for the room along the way; the next key press shows the answer.

# %% [markdown] after="In part 18, one rank worked while the others waited. Now the batch is cut into m micro-batches, and rank 0 starts the second one while" tags=["notes"]
# Many people think that 1F1B is faster. Let them read off the ends of both pictures: 33 units each, and a bubble fraction of 27.3%. (The
# Megatron paper would say 3/8, of the ideal time.) Then compare rank 3: in 1F1B it frees a micro-batch's activations after its backward,
# before the next forward; in GPipe it holds all eight when its backwards begin. The paper's GPipe recomputes, so it holds eight inputs.

# %% [markdown] after="## A worked example: micro-batches in the storage" tags=["notes"]
# Ask what happens with only the layer as the key, as in part 16. The second micro-batch replaces the activation of the first, and backward
# gets an activation and a gradient of different samples; the simulator says so.

# %% [markdown] after="Three micro-batches go forward" tags=["notes"]
# Let the room predict the last number on each rank: 3 and 6. Rank 0 takes out what it sends, and rank 1 keeps both input and output. If
# someone asks about the 1.05 ms between micro-batches: a forward takes 0.29 ms, and rank 0 waits for its next input.

# %% [markdown] after="Three micro-batches go forward" tags=["slide"]
# ## A question for the room
#
# There are 4 ranks and 8 micro-batches. What is the largest number that is ever in flight on rank 0?

# %% [markdown] tags=["fragment"]
# Four, one for each rank. With all forwards first (GPipe), it would be eight.

# %% [markdown] after="Messages between two ranks arrive in the order in which they were sent, so micro-batches need no labels." tags=["notes"]
# Let them count in the picture: four forwards before the first backward on rank 0, one on rank 3, so $p - r$. In code it is easy to be off
# by one: the first loop does $p - 1 - r$ forwards if the second one begins with a forward. But it must never do more forwards than there
# are micro-batches.

# %% [markdown] after="Exercise: part3_training_loop" tags=["notes"]
# The whole schedule is in the number `ahead`. One too many costs memory; one too few makes the ranks wait for each other, and the step
# takes 39 instead of 25 ms on four ranks. The end needs no loop of its own, because the `if` stops the forwards.

# %% [markdown] after="Check the order" tags=["notes"]
# This check needs no finished loop: it prints each rank's work as far as it comes, next to the picture's. To show it, set `ahead` to
# `len(batches)` first: then it is GPipe, and each rank departs where its first backward should be.

# %% [markdown] after="Check" tags=["notes"]
# The check compares the order with the one of the picture, and the time (with free messages) with the formula. GPipe passes on time, but
# fails on order and memory: 2.0 GiB on four ranks, where 1F1B needs 1.2.

# %% [markdown] after="Draw the ideal" tags=["notes"]
# Move the slider to the end of rank 3's first backward. Ranks 0 and 1 wait, although rank 0 could take another micro-batch: it must not, to
# save memory. Now rank 2 does its first backward, and rank 3 its next forward.

# %% [markdown] after="Draw the ideal" tags=["slide"]
# ## A question for the room
#
# What fraction of the time are the ranks idle, if messages cost nothing?

# %% [markdown] tags=["fragment"]
# $(p-1)/(m+p-1) = 3/11$, or 27% of T: the same as for GPipe. 1F1B saves memory, not time.

# %% [markdown] after="Draw the schedule" tags=["notes"]
# 25.2 instead of 19.6 ms: MFU falls from 68 to 53%. Look at a rank in the middle: there are gaps in every round, because the rank stops
# at each `await` until its message is through. The formula knows nothing about them.

# %% [markdown] after="Draw the schedule" tags=["slide-50"]
# ## A question for the room
#
# What would more micro-batches change?

# %% [markdown] tags=["fragment"]
# Of the ideal time, the bubbles are $(p-1)/m$: they shrink as 1/m. But smaller micro-batches use the device less well, and send more
# messages.

# %% [markdown] after="Draw the utilization" tags=["notes"]
# Take bets before you show it. Micro-batches of 2 win with 68%, but 1 and 4 are close behind, so the choice is not critical. With 8
# micro-batches of 32, the formula alone gives a bubble fraction of 7/15, or 47%.

# %% [markdown] after="Draw the memory" tags=["notes"]
# The memory ranges from 0.7 to 5.0 GiB, and the run with 256 micro-batches needs the least: at most eight of them are in flight on rank 0.
# So memory favors small micro-batches, and so do the bubbles; only messages and small matrix products push the other way.

# %% [markdown] after="Draw sixteen ranks" tags=["notes"]
# Look at ranks 7 and 8, which hardly do anything but send and receive. A message takes 1.5 ms there, and the forward of a rank's two layers 0.6 ms, so this one link
# sets the pace for everyone. The formula says a bubble fraction of 24%; the picture has 57%.

# %% [markdown] after="Slow down a stage" tags=["notes"]
# Rank 1 takes twice as long, and T grows from 25.2 to 36.7 ms: rank 1 is never idle for long, and everyone else waits for it once per
# micro-batch. So stages should take equally long, which is why planners balance them. Ask what m would change: nothing about the pace.

# %% [markdown] after="Stop the rank" tags=["notes"]
# Question 1: because of memory; on four ranks, at most four micro-batches are in flight instead of eight. Question 2: start the next
# receive before computing, and do not await the send. Question 3: each micro-batch passes through every rank twice, so there are about
# twice as many messages, and more activations in flight.
