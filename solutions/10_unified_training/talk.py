# %% [markdown] after="# 10 Unified training" tags=["notes"]
# Train one grid live; the others take a minute. The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come
# on the way, each with its answer on the next key.

# %% [markdown] after="Look for the functions" tags=["notes"]
# Ask which of the eleven send anything in a training step. Five do: the two of part 03, one each of parts 04 and 05, and
# `collect_weight_grad`. `get_info` makes the groups beforehand, and three of the four Megatron functions return what they were given.

# %% [markdown] after="Draw the grid" tags=["notes"]
# Pick rank 5 and let the room say whom it talks to: rank 4 in forward, and ranks 1, 3 and 7 when backward is done. Students often swap rows
# and columns here, so name the group each time.

# %% [markdown] after="Train" tags=["notes"]
# Before you run it, ask how many collectives a rank takes part in during one training step. Three: one all-reduce of the logits along mp,
# and two along dp, because all weights lie in one flat array and all biases in another.

# %% [markdown] after="Draw the loss" tags=["notes"]
# Each point is the mean over all 24 images of a step, not over the six that one rank has, so curves of different grids may be compared.
# Collect the guesses for the question in the text now; all grids side by side come in a moment.

# %% [markdown] after="Draw the loss" tags=["slide"]
# ## A question for the room
#
# All grids train the same model. Are their losses equal to the last bit?

# %% [markdown] tags=["fragment"]
# No: sums in another order round otherwise. They agree to about six digits in float32.

# %% [markdown] after="Train on every grid" tags=["notes"]
# This takes about a minute. Meanwhile ask why the naive style stops at mp 2: it splits the output as well, and four ranks cannot share ten
# classes equally.

# %% [markdown] after="Draw the losses" tags=["notes"]
# A grid that was wrong would show at once. Ask what the curve would do if `collect_weight_grad` returned the sum instead of the mean: with
# dp 2, it would be training with twice the learning rate.

# %% [markdown] after="Draw the losses" tags=["slide"]
# ## A question for the room
#
# Which grid for a model that does not fit on one device?

# %% [markdown] tags=["fragment"]
# Along mp, or ZeRO: data parallelism alone holds all of it everywhere.

# %% [markdown] after="Draw the traffic" tags=["notes"]
# Start with the two bars for mp 2, dp 1: naive sends 25 kB a step, Megatron less than 1 kB. Then compare the dp part with and without mp 2:
# it halves, because a rank has only half of the gradients. With twice the batch only the mp parts would grow.

# %% [markdown] after="Draw the traffic" tags=["slide-50"]
# ## A question for the room
#
# When does it pay to have more ranks along mp, and when along dp?

# %% [markdown] tags=["fragment"]
# mp sends activations, which grow with the batch; dp sends gradients, which grow with the weights. And mp sends in every layer, so it
# wants the fast links.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Compare dp 2 with one rank: the same parameters and gradients, and a hatched part as large as the gradients. With mp 2 both are halved.
# The small mark is tracemalloc's, which also sees temporary arrays that nobody has registered.

# %% [markdown] after="Stop the ranks" tags=["notes"]
# Question 1: the mp groups stay inside a machine, because they exchange within the model; only gradients cross the cable. Question 3: each
# rank is left with 32 of 256 hidden units, so it spends its time waiting for the others and not multiplying.
