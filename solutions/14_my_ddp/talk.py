# %% [markdown] after="# 14 Your own DistributedDataParallel" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="Four models" tags=["notes"]
# Ask what rank 2 has at the end: rank 0's four numbers. Point at `drawn.weight.data`: the broadcast writes into the array that the model
# already uses. A broadcast into a copy changes nothing, and that mistake is easy to miss.

# %% [markdown] after="Draw the models" tags=["notes"]
# Someone usually asks why we do not take the mean of the four models. That would be equal everywhere as well, but the mean of four random
# draws has half their spread, so the weights would start too small.

# %% [markdown] after="The order of hooks" tags=["notes"]
# Take a vote on the order before you run it. Point at `name=name` in the lambda: without it, all hooks would print the last name. Only rank
# 0 runs this cell, so there is one list instead of four.

# %% [markdown] after="The order of hooks" tags=["slide"]
# ## A question for the room
#
# Whose hook fires first: the first layer's or the last layer's?

# %% [markdown] tags=["fragment"]
# The last layer's: backward starts there.

# %% [markdown] after="## Your turn" tags=["notes"]
# The order matters because MPI matches collectives by the order of the calls, not by name. Be frank about one thing: a blocking all-reduce
# in the hook starts early, but the rank is idle while it waits. Real overlap needs the non-blocking call; "What it costs" compares the two.

# %% [markdown] after="Exercise: MyDP" tags=["notes"]
# Two things are most often forgotten: the broadcast of all parameters, including the biases, and `return mean`, without which the rank
# continues with its own gradient. Dividing by 4 instead of `Get_size()` works here and fails on two ranks.

# %% [markdown] after="Check" tags=["notes"]
# The gate is how you test when something happens: a wrapper that communicates after backward ends up with the right gradients and still
# fails. The unused layer catches those who expect every hook to fire.

# %% [markdown] after="## What it costs" tags=["notes"]
# Let the room count the all-reduces for the first three ways. The model has four layers of 4 MiB, with biases, so there are eight with one
# per parameter, two with buckets of 8 MiB, and four with buckets of 4 MiB. Ask for a ranking before the next cell.

# %% [markdown] after="Time four ways" tags=["notes"]
# Ranks 2 and 3 only help to create the pair and then do nothing, so that two ranks have the machine to themselves. `GradientTimer` lets the
# gradient through and records the time; for each way, we keep the step of median length, not the best one.

# %% [markdown] after="Time four ways" tags=["slide"]
# ## A question for the room
#
# Why buckets, and not one all-reduce per parameter?

# %% [markdown] tags=["fragment"]
# Every all-reduce has a start-up time, however small it is. But one single bucket would have to wait for the last gradient.

# %% [markdown] after="Draw the steps" tags=["notes"]
# Compare where the first dark bar begins: during backward in the first and third ways, at its end in the second. White means that the rank
# is idle, or adding numbers. Another machine may rank the four ways differently.

# %% [markdown] after="Draw the steps" tags=["slide-50"]
# ## A question for the room
#
# Which part of the communication can never be hidden behind backward?

# %% [markdown] tags=["fragment"]
# The all-reduce of the first layer's gradient: it comes last, and nothing is computed after it.

# %% [markdown] after="Stop the ranks" tags=["notes"]
# Question 1: with hardware that moves data by itself, the bars can end while backward is still computing; that is what NCCL and a network
# card give you. Question 2: rank 1 waits in an all-reduce that rank 0 never joins. The ready-made wrapper sends zeros for such a parameter
# instead.
