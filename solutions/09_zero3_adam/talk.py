# %% [markdown] after="# 09 Adam on shards" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="The picture shows what a rank holds at each stage of ZeRO (Rajbhandari et al., SC'20, section 3.1). In float32, as here, Adam takes 4 bytes" tags=["notes"]
# Read out the numbers in the picture on the first slide: 16, 10, 7 and 4 MB for stages 0 to 3 in float32; 16, 7, 5.5 and 4 MB in mixed
# precision. The last bars are equal, since then all 16 bytes are sharded. Ask what stage 1 leaves with a thousand ranks: 8 bytes here, 4
# in the paper.

# %% [markdown] after="The first step" tags=["notes"]
# Take bets before you run it. In the first step, the corrections turn the mean into the gradient and the square root into its absolute
# value, so only the sign is left. Only a gradient about as small as eps, 1e-8, would move the parameter less.

# %% [markdown] after="The first step" tags=["slide"]
# ## A question for the room
#
# The gradients differ by a factor of a million. By how much do the first steps differ?

# %% [markdown] tags=["fragment"]
# Not at all: Adam divides by the gradient's own size. Each step is about as large as the learning rate.

# %% [markdown] after="## Your turn" tags=["notes"]
# `t` counts steps, not layers: if it grows inside the loop, the second layer is corrected as if it were in step 2. It has to be 1 at the
# first division; at 0 you would divide by zero.

# %% [markdown] after="## Your turn" tags=["slide"]
# ## A question for the room
#
# What do the ranks exchange in `step`?

# %% [markdown] tags=["fragment"]
# Nothing. Every number is updated independently, and a rank has everything its numbers need.

# %% [markdown] after="Exercise: ZeroDPAdam" tags=["notes"]
# Everything is done in place for a reason: only one temporary array of the size of a shard is needed, and the layer's own array changes.
# `shard = shard - change` would only rebind a local name, and no layer would change. Point out that eps is outside the root.

# %% [markdown] after="Check" tags=["notes"]
# Work through the second step on the board: *m* is -g/4, divided by 3/4 that is -g/3, and *v* is g squared after its correction. Without
# the corrections, the first step is already wrong: 0.71 times lr.

# %% [markdown] after="Run the stages" tags=["notes"]
# Ask which stage will have a different loss: none, up to rounding, because all of them compute the same update. Do not read too much into
# the milliseconds: the four ranks share one machine, with no network in between.

# %% [markdown] after="Compare with the formula" tags=["notes"]
# Go down the bars and ask what gets smaller at each stage: Adam's state, then the gradients, then the parameters. The formula counts
# neither activations nor communication buffers, which hold one whole layer at a time in stages 2 and 3.

# %% [markdown] after="Compare with the formula" tags=["slide-50"]
# ## A question for the room
#
# At stage 2, with 64 ranks and a billion parameters, how much does a rank hold?

# %% [markdown] tags=["fragment"]
# 4 GB of parameters, and 12 GB / 64 = 0.19 GB of everything else. The parameters are all that is left to shard, and stage 3 does that.

# %% [markdown] after="Draw the traffic" tags=["notes"]
# Ask which stage sends the most before you draw the chart. Stages 0 to 2 send the same amount, about 5 MB, because a reduce-scatter and an
# all-gather make an all-reduce. Stage 3 gathers twice and sends 7.4 MB.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: it is the simplest, and nothing has to wait for the update: its all-reduces can overlap with the backward pass, except for that of the
# first layer, whose gradient comes last. In stages 1 and 2, the all-gather has to wait for the update; it can overlap only with the next
# forward pass. 2: what is sharded shrinks, and activations stay the same; the gathers of stage 3 suffer most, with 63 ring steps instead of 3
# for every layer.
