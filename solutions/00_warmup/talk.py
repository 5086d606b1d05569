# %% Draw eight ranks after="# 00 Warm-up: four collectives" tags=["given"]
# Draw eight ranks
from course_lib import plots

plots.groups({"world": [tuple(range(8))]}, "Eight ranks: one group, and a copy of the program on each rank")

# %% [markdown] after="# 00 Warm-up: four collectives" tags=["notes"]
# The first deadlock is on purpose: have the room predict what will happen before you run it. The grey lines are folded cells; Shift-Enter
# runs them. There are three questions for the room along the way; the next key press shows the answer.

# %% [markdown] after="Start the ranks" tags=["notes"]
# These are eight operating system processes, not threads. Ask where a variable lives if you set it in a cell without `%%px`: only in the
# notebook, so no rank knows it. Forgetting `%%px` is the classic slip of the first hour.

# %% [markdown] after="Print the rank" tags=["notes"]
# Point out the grouping: eight processes have printed something, but you see only two lines, each below the ranks that printed it. Students
# often ask which rank was first. The output is collected and then grouped, so its order says nothing about that.

# %% [markdown] after="## How to read the pictures" tags=["notes"]
# No need to go through it line by line. Ask what a color means in a picture without a time axis: a rank. And with one: a kind of work.

# %% [markdown] after="Draw the legend" tags=["notes"]
# Point at the hatching: in later parts it marks waiting, which is where the time goes.

# %% [markdown] after="Run the all-reduce" tags=["notes"]
# Type in the room's guess before you run it. Rank 2 starts with 2, 5, 7 and ends with 0, 0, 1. The usual wrong answer contains 2, the
# smallest of rank 2's own numbers. But the minimum is taken over the ranks, separately at each position.

# %% [markdown] after="Run the all-reduce" tags=["slide"]
# ## A question for the room
#
# After an all-reduce that computes the sum over eight ranks, which rank has the result?

# %% [markdown] tags=["fragment"]
# All of them: that is what the *all* stands for. A plain reduce gives it to only one.

# %% [markdown] after="Draw the all-reduce" tags=["notes"]
# In the right half, all eight rows are the same. If there is time, go back, change the operation to `MPI.SUM`, and ask for the numbers
# first: 28, 28, 36.

# %% [markdown] after="Run the all-gather" tags=["notes"]
# Rank 5's own numbers are 50 and 51. Ask where they end up: at positions 10 and 11, counting from 0. If somebody asks why you have to give
# the size of `after` at all: MPI does not create an array, it writes into memory that already exists.

# %% [markdown] after="Draw the all-gather" tags=["notes"]
# Again, all rows are the same, but now each rank holds eight times what it contributed. That is the price of an all-gather. Part 03 uses it
# to collect activations, part 08 to collect the weights of a sharded layer.

# %% [markdown] after="Run the reduce-scatter" tags=["notes"]
# The answer is 304, the sum at position 3: 10 times 28, plus 8 times 3. Anyone who says 268 has added up rank 3's own eight numbers.

# %% [markdown] after="Draw the reduce-scatter" tags=["notes"]
# Read the right half from top to bottom: 280, 288, 296 and so on. It is the one row that an all-reduce would leave on every rank, but here
# each rank has just one number from it. Keep this in mind for the ring, where an all-reduce is done as a reduce-scatter and then an
# all-gather.

# %% [markdown] after="Run the sum in a group" tags=["notes"]
# Ask for the sums of both groups: 0 + 2 + 4 + 6 = 12 for the even ranks, 16 for the odd ones. All eight ranks make the same call, and each
# reaches only its own group. Mention that rank 6 is rank 3 of its new group.

# %% [markdown] after="Draw the sum in a group" tags=["notes"]
# Two results instead of one, on four ranks each. Part 02 builds the rows and columns of a grid of ranks in just this way, and most of the
# communication in this course stays within a row or a column.

# %% [markdown] after="Forget a rank" tags=["notes"]
# Read the message aloud: it says who is waiting and in which call, and that rank 4 has finished the cell without making that call. The
# cause is nearly always the one it names, an `if` on the rank around a collective. Then run any other cell to show that the ranks are fine.

# %% [markdown] after="Forget a rank" tags=["slide"]
# ## A question for the room
#
# Seven ranks call the all-reduce, and one does not. What would happen on a cluster with a thousand ranks?

# %% [markdown] tags=["fragment"]
# The others wait silently until somebody notices or the job's time is up. Here the ranks tell each other where they are, so you know within
# about a second.

# %% [markdown] after="## What it costs" tags=["notes"]
# Before you show the chart, work out one bar on the board: in the all-reduce, each rank sends 1.75 times 64 kB, which is 112 kB. Then ask
# about the group of four. Most people say half of that; the chart will show 96 kB.

# %% [markdown] after="Count the bytes" tags=["notes"]
# Compare the first bar with the last: with half the ranks, the factor only drops from 1.75 to 1.5. The two bars in the middle are half as
# long as the first, and the ring on the next slide shows why. The calls are the ones the ranks really made; the bytes come from the ring
# formula.

# %% [markdown] after="Draw a ring" tags=["notes"]
# The frame marks the piece that has just arrived. Stop at step 7: every rank has one dark piece, each a different one, and that is the
# reduce-scatter. Steps 8 to 14 only copy, and that is the all-gather: 14 steps of one eighth each make 1.75.

# %% [markdown] after="Draw a ring" tags=["slide-50"]
# ## A question for the room
#
# With 800 ranks instead of 8, how much more does each one send?

# %% [markdown] tags=["fragment"]
# Hardly any more: $2\frac{n-1}{n}$ goes from 1.75 arrays to 1.9975. But there are 1,598 steps instead of 14, and every step takes time.

# %% [markdown] after="## How long it takes" tags=["notes"]
# Write the formula on the board and collect guesses for both numbers. Most people guess the bandwidth of the laptop's memory and forget
# that an all-reduce also adds, copies several times, and shares two or four cores among its ranks.

# %% [markdown] after="Measure the all-reduce" tags=["notes"]
# Ask why the slowest rank's time counts: an all-reduce is over when the last rank has its result. And why the median and not the mean: one
# repetition that the operating system interrupts for 10 ms would decide a mean.

# %% [markdown] after="`alpha_beta.fit` finds the two numbers with which $T(n)$ fits the times best. It uses errors relative to the measured time, so that small" tags=["notes"]
# On a quiet laptop, the prediction is off by less than a factor of two. Ask which of the two numbers a faster network improves, and which
# one it does not.

# %% [markdown] after="Draw the times" tags=["notes"]
# With four ranks on two cores we found 30 to 50 microseconds and 1 to 2 GB/s. Point at the corner: below about 50 kB an all-reduce costs the
# same, whatever its size. That is why gradients are collected in buckets, which is part 14, and part 16 uses the same two numbers to say
# when a training step waits for the network.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: an all-reduce, divided by 8, if each gradient is a mean over the same number of samples; part 07 does this. 2: with twice as many ranks
# there are about twice as many steps, but each piece is half as large, so the total stays below two arrays. 3: with 40 microseconds and 1.2
# GB/s, 50 small ones take 50 times 43, and the large one 207 microseconds: ten times less.
