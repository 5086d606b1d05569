# %% [markdown] after="# 35 Zero bubble" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer. The timelines take a few seconds. In the picture, follow the first gradient: above, it leaves rank 3 after two units, and takes six
# until rank 0 has it. Below, it takes three.

# %% [markdown] after="In part 25's pipeline, each rank is idle for a part of the step. The previous rank waits for the gradient of the **input**. Nobody waits" tags=["notes"]
# The formulas count the idle time of one rank: with one tick for each of F, B and W, 9 of 33 ticks, and 3 of 27. The picture on the first
# slide says so, too.

# %% [markdown] after="In part 25's pipeline, each rank is idle for a part of the step. The previous rank waits for the gradient of the **input**. Nobody waits" tags=["slide"]
# ## A question for the room
#
# Back to the lower picture on the first slide: which rank puts off most W, and what does it do with them?

# %% [markdown] tags=["fragment"]
# Rank 3 puts off three, and does them at the end, when it has no more B to do. Rank 0 puts off none: it gets its B last, so its end is full
# anyway.

# %% [markdown] after="## A worked example: one matrix product" tags=["notes"]
# Ask which of the two formulas needs x, before you show them. B needs the weight, W needs x, and both need the gradient of y. So whoever
# puts off W must keep two arrays per product.

# %% [markdown] after="Go back through a stage" tags=["notes"]
# The logits come first, then the MLP's second product of the last block. Count them: four per block, and one more here. `through` returns
# zeros, so all gradients after the first are zero; their shapes are right.

# %% [markdown] after="## Your turn: B and W" tags=["notes"]
# What is easy to miss: gradients have three axes, and a weight's gradient adds up over two of them. Attention's scores, GELU's arrays and
# the norms' are not kept: they are freed in B.

# %% [markdown] after="Exercise: backward_input" tags=["notes"]
# The whole idea of the paper's code is in `kept.append`: there it is called the WeightGradStore. The function never touches x.

# %% [markdown] after="Exercise: backward_weight" tags=["notes"]
# `pop` frees what B has kept. Without it, all numbers are right and the memory grows with the number of micro-batches.

# %% [markdown] after="Exercise: backward_weight" tags=["slide-50"]
# ## A question for the room
#
# Between B and W, a rank keeps x and the gradient of y for each product. What does it no longer keep?

# %% [markdown] tags=["fragment"]
# What only B needs: attention's weights, q, k and v, what GELU and the norms keep, and the logits' softmax. In this GPT, less than half of
# what a micro-batch keeps after F is left.

# %% [markdown] after="## Your turn: ZB-H1" tags=["notes"]
# Let the room find the rule on the picture: rank r puts off r of them. Then ask for the memory: rank 0 has four in flight, rank 3 one in
# flight and three between B and W. Four everywhere.

# %% [markdown] after="Exercise: zb_h1_step" tags=["notes"]
# It is part 25's 1F1B with two more lines. The gradient is sent before W, of course: sending it after W would give all the time back.

# %% [markdown] after="## The real timeline, beside 1F1B's" tags=["notes"]
# The stages sleep, so this works on any laptop; all messages are real. Collect guesses: 33 and 27 times 20 ms.

# %% [markdown] after="Choose the seconds" tags=["notes"]
# `undivided` is the trick of this cell: B does everything, W nothing, and the very same step is 1F1B. So the comparison is fair.

# %% [markdown] after="Draw the timelines" tags=["notes"]
# 670 and 550 ms here. Rows of one color at the end are the W that were put off. Ask where the idle time of rank 0 has gone: it still waits
# for its first B, for three ticks.

# %% [markdown] after="Draw the timelines" tags=["slide"]
# ## A question for the room
#
# Three ticks are left. What would you change to fill them?

# %% [markdown] tags=["fragment"]
# Rank 0 has to have work while it waits: more forwards. That is the paper's ZB-H2. It has no bubble, and up to twice the activations.

# %% [markdown] after="## What it costs" tags=["notes"]
# Rank 0 is the same in both, as it puts off nothing. The other ranks hold less in 1F1B; in ZB-H1 they use some of what they have to spare.

# %% [markdown] after="Draw the memory" tags=["notes"]
# On rank 3, twice as much as in 1F1B, and still less than on rank 0. As devices are alike, only the largest bar matters.

# %% [markdown] after="## Interleaving instead" tags=["notes"]
# Draw the way of one micro-batch on the board: through the first chunks of all ranks, then through the second ones. That is why rank 0
# starts more forwards before its first backward.

# %% [markdown] after="Draw interleaving" tags=["notes"]
# A piece of work is half as long, as a chunk has half the layers. The lower picture is over sooner because it fills up sooner. Count the
# forwards of rank 0 before its first backward: eleven halves, where 1F1B has four whole ones.

# %% [markdown] after="Compare the memory" tags=["notes"]
# Interleaving holds p + (p - 1) / v micro-batches, so two chunks are the worst. Its bubble is (p - 1) (F + B + W) / v; with four chunks, it
# is shorter than that of ZB-H1, for four times as many messages.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: rank 0 waits for its first B, and every rank for its first F; 2 p - 1 micro-batches in flight fill it. For 2: everybody waits for
# the slowest rank's last W, and all ranks for the sum. The paper steps first, and checks and undoes the step afterwards if need be. For 3: W
# can run while B's all-reduce is on its way, as can any product of the same layer.
