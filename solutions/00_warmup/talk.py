# %% [markdown] after="# 00 Warm-up: four collectives" tags=["notes"]
# The first deadlock is on purpose: let the room say what will happen before you run it. The grey lines are folded cells: Shift-Enter runs
# them. Three questions for the room come on the way, each with its answer on the next key.

# %% [markdown] after="Start the ranks" tags=["notes"]
# These are eight processes of the operating system, and not threads. Ask where a variable lives that is set in a cell without `%%px`: only
# in the notebook, so no rank knows it. A forgotten `%%px` is the usual slip of the first hour.

# %% [markdown] after="Print the rank" tags=["notes"]
# Point at the grouping: eight processes have printed, and you see two texts, each under the ranks that printed it. Students ask which rank
# was first: the output is collected and then grouped, so its order says nothing about that.

# %% [markdown] after="Run the all-reduce" tags=["notes"]
# Type the room's guess before you run it. Rank 2 starts with 2, 5, 7 and ends with 0, 0, 1. The usual wrong answer has 2, the smallest of
# rank 2's own numbers: the minimum goes over the ranks, at each position by itself.

# %% [markdown] after="Run the all-reduce" tags=["slide"]
# ## A question for the room
#
# After an all-reduce with the sum over eight ranks, which rank has the result?

# %% [markdown] tags=["fragment"]
# All of them: that is what the *all* stands for. A plain reduce gives it to one.

# %% [markdown] after="Draw the all-reduce" tags=["notes"]
# In the right half all eight rows are the same. If there is time, go back, change the operation to `MPI.SUM`, and ask for the numbers
# first: 28, 28, 36.

# %% [markdown] after="Run the all-gather" tags=["notes"]
# Rank 5's own numbers are 50 and 51. Ask at which positions they end up: 10 and 11, counted from 0. If somebody asks why the size of
# `after` is given at all: MPI writes into memory that is there already, and makes no array.

# %% [markdown] after="Draw the all-gather" tags=["notes"]
# Again all rows are equal, but now each rank holds eight times what it gave. That is the price of an all-gather. Part 03 collects
# activations with it, part 08 the weights of a sharded layer.

# %% [markdown] after="Run the reduce-scatter" tags=["notes"]
# The answer is 304, the sum at position 3: 10 times 28, and 8 times 3 more. Who says 268 has added up rank 3's own eight numbers.

# %% [markdown] after="Draw the reduce-scatter" tags=["notes"]
# Read the right half from top to bottom: it is the one row that an all-reduce would leave on every rank, 280, 288, 296 and so on, one number
# for each rank. Keep this in mind for the ring, where an all-reduce is done in these two halves.

# %% [markdown] after="Run the sum in a group" tags=["notes"]
# Ask for both groups: 0 + 2 + 4 + 6 = 12 for the even ranks, 16 for the odd ones. All eight make the same call, and each reaches its own
# group only. Mention that rank 6 has the number 3 in its new group.

# %% [markdown] after="Draw the sum in a group" tags=["notes"]
# Two results instead of one, on four ranks each. Part 02 makes the rows and columns of a grid of ranks in just this way, and most exchanges
# of the course stay in one of them.

# %% [markdown] after="Forget a rank" tags=["notes"]
# Read the message aloud: who waits, in which call, and that rank 4 has finished the cell without it. The cause is nearly always the one
# that it names, an `if` on the rank around a collective. Then run any other cell, to show that the ranks are fine.

# %% [markdown] after="Forget a rank" tags=["slide"]
# ## A question for the room
#
# Seven ranks call the all-reduce, and one does not. What happens on a cluster with a thousand ranks?

# %% [markdown] tags=["fragment"]
# The others wait, without a word, until somebody looks or the job's time is over. Here the ranks tell each other where they are, so it
# takes a second.

# %% [markdown] after="## What it costs" tags=["notes"]
# Work out one bar on the board before the chart: the all-reduce sends 1.75 times 64 kB, 112 kB, from each rank. Then ask what it is in the
# group of four. Most say half of that; the chart will show 96 kB.

# %% [markdown] after="Count the bytes" tags=["notes"]
# Compare the first bar with the last: with half the ranks the factor only goes from 1.75 to 1.5. The two bars in the middle are halves of
# the first, as the ring on the next slide shows. The calls are those that the ranks really made, the bytes come from the ring formula.

# %% [markdown] after="Draw a ring" tags=["notes"]
# The frame marks the piece that has just come. Stop at step 7: every rank has one dark piece, each a different one, and that is the
# reduce-scatter. Steps 8 to 14 only copy, which is the all-gather: 14 steps of one eighth make 1.75.

# %% [markdown] after="Draw a ring" tags=["slide-50"]
# ## A question for the room
#
# With 800 ranks in place of 8, how much more does each one send?

# %% [markdown] tags=["fragment"]
# Hardly anything: $2\frac{n-1}{n}$ goes from 1.75 arrays to 1.9975. But there are 1,598 steps in place of 14, and each takes its time.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: an all-reduce, divided by 8, if each gradient is a mean over equally many samples; part 07 does this. 2: with twice the ranks there are
# about twice as many steps, and each piece is half as large, so the total stays below two arrays.
