# %% [markdown] after="# 14 Your own DistributedDataParallel" tags=["notes"]
# The gray lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="Four models" tags=["notes"]
# Ask what rank 2 has at the end: rank 0's four numbers. Point at `drawn.weight.data`: the broadcast writes into the array that the model
# already uses. A broadcast into a copy changes nothing, and that mistake is easy to miss.

# %% [markdown] after="Draw the models" tags=["notes"]
# Someone usually asks why we do not take the mean of the four models. That would be equal everywhere as well, but the mean of four random
# draws has half their spread, so the weights would start too small.

# %% [markdown] after="The order of hooks" tags=["notes"]
# Take a vote on the order before you run it. Point at `name=name` in the lambda: without it, all hooks would print the last name. Only rank
# 0 runs this cell, so there is one list instead of four. The last line is `after_backward`'s: that is where a wrapper waits.

# %% [markdown] after="The order of hooks" tags=["slide"]
# ## A question for the room
#
# Whose hook fires first: the first layer's or the last layer's?

# %% [markdown] tags=["fragment"]
# The last layer's: backward starts there.

# %% [markdown] after="## Start now, wait later" tags=["notes"]
# Ask which ranks find their all-reduce complete at once: perhaps the last one to start it. Ask what is in `total` until then: nobody knows.
# That is why a hook cannot return the mean: when it returns, the sum is not there yet.

# %% [markdown] after="## Your turn" tags=["notes"]
# MPI matches collectives by the order of the calls, not by name. Ask who guarantees the order of the hooks. Nobody: the ranks of a model
# with branches may go through it in different orders. So buckets have an order of their own, and each waits for its turn.

# %% [markdown] after="Exercise: MyDP" tags=["notes"]
# Most often forgotten: the broadcast of the biases, the Wait, and the bucket that never gets full because a layer is not used. Dividing
# before the Wait changes an array that is still in flight. Dividing by 4 instead of `Get_size()` works here and fails on two ranks.

# %% [markdown] after="## Does it work?" tags=["notes"]
# The gate is how you test when something happens: a wrapper that communicates after backward ends up with the right gradients and still
# fails. The late rank is how you test that nobody waits: a blocking hook is a deadlock there, at any speed of the machine.

# %% [markdown] after="## What it costs" tags=["notes"]
# Ask for a ranking before the next cell. Most people put the second way first, since it waits for nothing until the end. But while the
# process sleeps, nobody moves the data: starting a transfer is not the same as doing it.

# %% [markdown] after="Three ways to take a step" tags=["notes"]
# Ranks 2 and 3 only help to create the pair and then do nothing, so that two ranks have the machine to themselves. `Device` lets the
# gradient through and pauses, and the spans name parts of the trace. The next cell takes five steps in each way and draws the fastest.

# %% [markdown] after="Draw the steps" tags=["notes"]
# The thin bars under the rows are all-reduces in flight. First way: computing and transfers take turns. Second way: all transfers begin
# early and end together, in the first Wait. Third way: each ends while the next layer is computed. On a busy machine, run the cell again.

# %% [markdown] after="Draw the steps" tags=["slide-50"]
# ## A question for the room
#
# Which part of the communication can never be hidden behind backward?

# %% [markdown] tags=["fragment"]
# The all-reduce of the first layer's gradient: it comes last, and nothing is computed after it.

# %% [markdown] after="How large should a bucket be? Small ones pay an all-reduce's latency more often. A large one starts late, when little is left to overlap it" tags=["notes"]
# Do the sum for no buckets on the board: 400 all-reduces, each with 0.05 ms of latency and 0.04 ms of sending, take 36 ms; computing takes 20.

# %% [markdown] after="How large should a bucket be? Small ones pay an all-reduce's latency more often. A large one starts late, when little is left to overlap it" tags=["slide"]
# ## A question for the room
#
# Why buckets, and not one all-reduce per parameter?

# %% [markdown] tags=["fragment"]
# Every all-reduce has a latency, however small it is. But one single bucket would have to wait for the last gradient.

# %% [markdown] after="Draw the bucket sizes" tags=["notes"]
# Halve the bandwidth: now the network is the bottleneck, and no bucket size hides it. Set the latency to zero: then the smallest buckets
# are best. The two ends of the picture are the two answers to the last question.

# %% [markdown] after="Stop the ranks" tags=["notes"]
# Question 1: the first layer's; in buckets, that is the last bucket, so its size is what cannot be hidden. Question 2: if each hook starts an
# all-reduce, rank 1's extra one meets rank 0's next one first: a mismatch, or a silently wrong sum if the sizes agree. With buckets, rank 0
# sends zeros in its place, but leaves its own `p.grad` None, so the models drift apart. The ready-made wrapper sends a mark with each
# gradient, and gives the mean to every rank if any rank has one.
