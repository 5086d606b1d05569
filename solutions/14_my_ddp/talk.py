# %% [markdown] after="# 14 Your own DistributedDataParallel" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Four models" tags=["notes"]
# Ask what rank 2 has in the end: rank 0's four numbers. Point at `drawn.weight.data`: the broadcast writes into the array that the model
# already uses. A broadcast into a copy changes nothing, and is a mistake that one does not see.

# %% [markdown] after="Draw the models" tags=["notes"]
# Someone usually asks why not the mean of the four models. That would be equal everywhere as well, but the mean of four random draws has
# half their spread, so the layers would start too small.

# %% [markdown] after="The order of hooks" tags=["notes"]
# Take a vote on the order before you run it. Point at `name=name` in the lambda: without it, all hooks would print the last name. Only rank
# 0 runs this, so there is one list and not four.

# %% [markdown] after="The order of hooks" tags=["slide"]
# ## A question for the room
#
# Whose hook fires first: that of the first layer, or of the last?

# %% [markdown] tags=["fragment"]
# The last layer's: backward begins there.

# %% [markdown] after="## Your turn" tags=["notes"]
# The order matters because MPI matches collectives by the order of the calls, not by name. Be frank about one thing: a blocking all-reduce
# in the hook starts early, but the rank stands still in it. Real overlap needs the non-blocking call, which "What it costs" compares.

# %% [markdown] after="Exercise: MyDP" tags=["notes"]
# Two things are forgotten most often: the broadcast of all parameters, biases too, and `return mean`, without which the rank goes on with
# its own gradient. Dividing by 4 instead of `Get_size()` works today and fails on two ranks.

# %% [markdown] after="Check" tags=["notes"]
# The gate is how one tests for when something happens: a wrapper that exchanges after backward has the right gradients in the end, and
# still fails. The unused layer catches those who expect every hook to fire.

# %% [markdown] after="## What it costs" tags=["notes"]
# Let the room count the exchanges of each way. Four layers of 4 MiB with biases: eight with one a parameter, two buckets of 8 MiB, four of
# 4 MiB. Ask for a ranking before the next cell.

# %% [markdown] after="Time four ways" tags=["notes"]
# Ranks 2 and 3 only make the pair and then do nothing, so that two ranks have the machine to themselves. `Mark` lets the gradient through
# and notes the time; what is kept of each way is a step of median length, not the best one.

# %% [markdown] after="Time four ways" tags=["slide"]
# ## A question for the room
#
# Why buckets, and not one exchange for each parameter?

# %% [markdown] tags=["fragment"]
# Each exchange takes some time to begin, however small it is. But one single bucket would have to wait for the last gradient.

# %% [markdown] after="Draw the steps" tags=["notes"]
# Compare where the first dark bar begins: during backward in the first and the third way, at its end in the second. White is where the rank
# stands still, or adds up. Another machine may rank the four ways differently.

# %% [markdown] after="Draw the steps" tags=["slide-50"]
# ## A question for the room
#
# What part of the exchange can never be hidden behind backward?

# %% [markdown] tags=["fragment"]
# That of the first layer's gradient: it comes last, and nothing is computed after it.

# %% [markdown] after="Stop the ranks" tags=["notes"]
# Question 1: hardware that moves data by itself lets the bars end while backward computes; that is what NCCL and a network card give.
# Question 2: rank 1 waits in an all-reduce to which rank 0 does not come. The ready-made wrapper sends zeros for such a parameter instead.
