# %% [markdown] after="# 09 Adam on shards" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="The picture is the paper's formula (Rajbhandari et al., SC'20, section 3) for float32 and Adam: 4 bytes for a parameter, 4 for its" tags=["notes"]
# Read the picture on the first slide in numbers: 16, 10, 7 and 4 MB for stages 0 to 3. Somebody will know 16 bytes a parameter from the
# paper: those are 2 + 2 + 12 in mixed precision, here it is 4 + 4 + 8.

# %% [markdown] after="The first step" tags=["notes"]
# Take bets before you run it. In the first step the corrections turn the mean into the gradient and the root into its absolute value, so
# only the sign is left. Only a gradient about as small as eps, 1e-8, would move less.

# %% [markdown] after="The first step" tags=["slide"]
# ## A question for the room
#
# The gradients differ by a factor of a million. By how much do the first steps differ?

# %% [markdown] tags=["fragment"]
# Not at all: Adam divides by the gradient's own size. Each step is about the learning rate.

# %% [markdown] after="## Your turn" tags=["notes"]
# `t` counts steps and not layers: if it grows inside the loop, it corrects the second layer as if it were in step 2. It has to be 1 at the
# first division; at 0 that would be a division by zero.

# %% [markdown] after="## Your turn" tags=["slide"]
# ## A question for the room
#
# What does `step` exchange?

# %% [markdown] tags=["fragment"]
# Nothing. Every number is updated by itself, and a rank has all that its numbers need.

# %% [markdown] after="Exercise: ZeroDPAdam" tags=["notes"]
# All is done in place for a reason: only one temporary array of a shard's size is needed, and the layer's own array changes.
# `shard = shard - change` would only set a local name, and no layer would change. Point at eps, outside the root.

# %% [markdown] after="Check" tags=["notes"]
# Do the second step on the board: *m* is -g/4, divided by 3/4 that is -g/3, and *v* is g squared after its correction. Without the
# corrections the first step is already wrong, 0.71 times lr.

# %% [markdown] after="Hidden tests take more steps, and train a model. They bring their own layers: part 08 does not count here." tags=["notes"]
# This is for those who do the exercise, so one sentence is enough: 50 steps are compared with Adam on whole arrays in float64, and a small
# model must classify 90% of the digits after one epoch.

# %% [markdown] after="Run the stages" tags=["notes"]
# Ask which stage will have another loss: none, up to rounding, as all of them compute the same update. Do not read much into the
# milliseconds: the four ranks share one machine, and no network is in between.

# %% [markdown] after="Compare with the formula" tags=["notes"]
# Go down the bars and ask what becomes smaller at each: Adam's state, then the gradients, then the parameters. The formula does not count
# activations, nor the buffers of exchanges, which at stages 2 and 3 hold one whole layer at a time.

# %% [markdown] after="Compare with the formula" tags=["slide-50"]
# ## A question for the room
#
# 64 ranks, a billion parameters, stage 2: how much does a rank hold?

# %% [markdown] tags=["fragment"]
# 4 GB of parameters, and 12 GB / 64 = 0.19 GB of all else. Now the parameters are what is left to shard: stage 3.

# %% [markdown] after="Draw the traffic" tags=["notes"]
# Ask who sends most before you draw. Stages 0 to 2 are equal, about 5 MB, since a reduce-scatter and an all-gather make an all-reduce.
# Stage 3 gathers twice, and is at 7.4 MB.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: it is the simplest, and all it sends can overlap with backward, while at stages 1 and 2 the all-gather has to wait for the update. 2:
# what is sharded shrinks, activations stay; the gathers of stage 3 suffer most, with 63 steps of the ring in place of 3, layer by layer.
