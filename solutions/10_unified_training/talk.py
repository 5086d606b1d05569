# %% [markdown] after="# 10 Unified training" tags=["notes"]
# Train on one grid live; the others take about a minute. The grey lines are folded cells; Shift-Enter runs them. There are three questions
# for the room along the way; the next key press shows the answer.

# %% [markdown] after="Look for the functions" tags=["notes"]
# Ask which of the eleven functions send anything in a training step. Five do: the two from part 03, one each from parts 04 and 05, and
# `collect_weight_grad`. `get_info` builds the groups in advance, and three of the four Megatron functions just return what they were given.

# %% [markdown] after="Draw the grid" tags=["notes"]
# Pick rank 5 and let the room say which ranks it talks to: rank 4 in the forward pass, and ranks 1, 3 and 7 after the backward pass.
# Students often mix up rows and columns here, so name the group each time.

# %% [markdown] after="Train" tags=["notes"]
# Before you run it, ask how many collectives a rank takes part in during one training step. Three: one all-reduce of the logits along mp,
# and two along dp, because all the weights are in one flat array and all the biases in another.

# %% [markdown] after="Draw the loss" tags=["notes"]
# Each point is the mean over all 24 images of a step, not over the six on one rank, so curves from different grids can be compared. Collect
# guesses for the question in the text now; the comparison of all grids comes in a moment.

# %% [markdown] after="Draw the loss" tags=["slide"]
# ## A question for the room
#
# All the grids train the same model. Are their losses identical, down to the last bit?

# %% [markdown] tags=["fragment"]
# No: if you add numbers in a different order, the sum is rounded differently. The losses agree to about six digits in float32.

# %% [markdown] after="Train on every grid" tags=["notes"]
# This takes about a minute. Meanwhile, ask why the naive style stops at mp 2: it splits the output as well, and ten classes cannot be
# divided equally among four ranks.

# %% [markdown] after="Draw the losses" tags=["notes"]
# If one grid were wrong, you would see it at once. Ask what the curve would do if `collect_weight_grad` returned the sum instead of the
# mean: with dp 2, that would be like training with twice the learning rate.

# %% [markdown] after="Draw the losses" tags=["slide"]
# ## A question for the room
#
# Which grid would you use for a model that does not fit on one device?

# %% [markdown] tags=["fragment"]
# Split it along mp, or use ZeRO: data parallelism alone keeps the whole model on every rank.

# %% [markdown] after="Draw the traffic" tags=["notes"]
# Start with the two bars for mp 2, dp 1: naive sends 25 kB per step, Megatron less than 1 kB. Then compare the dp part with and without mp
# 2: it halves, because each rank has only half of the gradients. If you doubled the batch, only the mp parts would grow.

# %% [markdown] after="Draw the traffic" tags=["slide-50"]
# ## A question for the room
#
# When does it pay to add ranks along mp, and when along dp?

# %% [markdown] tags=["fragment"]
# mp sends activations, which grow with the batch; dp sends gradients, which grow with the weights. And mp communicates in every layer, so
# it needs the fast links.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Compare dp 2 with one rank: the parameters and gradients take the same space, but there is also a dotted part as large as the
# gradients. With mp 2, both are halved. The small mark comes from tracemalloc, which also sees temporary arrays that nobody registered.

# %% [markdown] after="Stop the ranks" tags=["notes"]
# Question 1: keep each mp group inside one machine, because its ranks communicate in every layer; only gradients cross the cable. Question
# 3: each rank is left with 32 of the 256 hidden units, so it spends its time waiting for the others instead of multiplying.
