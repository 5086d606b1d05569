# %% [markdown] after="# 28 A GPT on every axis" tags=["notes"]
# Train one grid live: it takes half a minute. The grey lines are folded cells; Shift-Enter runs them. There are three questions for the
# room along the way; the next key press shows the answer.

# %% [markdown] after="Look for the functions" tags=["notes"]
# If you opened this with `make lecture`, the solutions are there. If a name is missing, run the command in parentheses in a shell, and then
# this cell again.

# %% [markdown] after="## Text, and a grid" tags=["notes"]
# With bytes, the vocabulary has only 256 entries, so no tokenizer is needed. Write ln 256 = 5.55 on the board: it is the loss of a model
# that gives each byte the same probability. You will need it when the loss is drawn.

# %% [markdown] after="Look at the text" tags=["notes"]
# These are 300 of four million bytes. The model sees 128 at a time, which is about three lines of this.

# %% [markdown] after="Draw the grid" tags=["notes"]
# Solid frames are the tp groups, dashed ones the pp groups, and the two boxes are the copies of the model. Ask who exchanges gradients with
# rank 0: rank 4, which has the same place in the other box. The ranks of a tp group are neighbours, because they exchange the most.

# %% [markdown] after="Draw the grid" tags=["slide"]
# ## A question for the room
#
# Eight ranks, two cores. Which grid will be fastest here, and which on eight GPUs?

# %% [markdown] tags=["fragment"]
# Here, the one that sends and waits the least: data parallel. On GPUs, the one whose parts fit into memory, with tp on the fastest links.

# %% [markdown] after="How a run goes" tags=["notes"]
# Go through the table with one question: message or collective, and how often? tp and cp communicate in every block, pp for every
# micro-batch, dp once after the backward pass. For gradients, cp counts as dp: other tokens, the same weights.

# %% [markdown] after="## Before and after" tags=["notes"]
# Take guesses for the first output: almost random bytes, many of them unprintable. After 80 steps, expect something that looks like Python,
# with hardly a real word.

# %% [markdown] after="Train, and write" tags=["notes"]
# This takes half a minute, so let it run while you talk. To generate text, rank 0 puts the model together. During training, it is never
# in one place.

# %% [markdown] after="Draw the loss" tags=["notes"]
# It starts at about 6, a little above 5.55, because random logits are worse than equal ones. The first drop is cheap: the model learns
# which bytes are frequent. Spelling comes later.

# %% [markdown] after="Train on other grids" tags=["notes"]
# Ask for expectations before you run it: which line will be lowest? There should be only one. Point at "one rank" in the output: it is the
# run without any communication, the one that all others are compared with. The two grids with experts have a line of their own.

# %% [markdown] after="Draw the losses" tags=["notes"]
# The title says how far apart they are. If one line departs from the others, its grid tells you where to look: only one of them uses
# `gpipe_step`, only one has `sequence` without `fsdp`, only one `ring_attention`.

# %% [markdown] after="Draw the losses" tags=["slide"]
# ## A question for the room
#
# Seven programs split the work in seven ways. Why do they all give the same line?

# %% [markdown] tags=["fragment"]
# The weights are drawn before they are split, the texts are chosen before they are shared out, and every sum is the same except for its
# order.

# %% [markdown] after="## What it costs" tags=["notes"]
# Let the room vote before the picture. tp, cp and pp send activations, which grow with the batch. dp sends gradients or weights, which
# grow with the model. Experts are the exception: they send tokens along dp.

# %% [markdown] after="Draw the bytes" tags=["notes"]
# Compare the first grid with the one that is fully sharded, too: there, dp sends more, because weights are gathered again for every
# micro-batch. The pipeline's part is always the smallest: one activation per micro-batch. One rank alone sends nothing, so it has no bar.

# %% [markdown] after="Draw the bytes" tags=["slide-50"]
# ## A question for the room
#
# Which part of the bytes would not grow with more texts per step?

# %% [markdown] tags=["fragment"]
# dp: gradients are as large as the weights. tp, cp and pp send activations, which do grow.

# %% [markdown] after="Change the sizes" tags=["notes"]
# Twice the batch: cp and tp double, from 5.2 and 5.6 MB, and dp stays at 4.2. Half as many texts of twice the length: nothing changes, only the
# work of attention doubles. Twice the width: cp and tp double, dp is almost four times as large.

# %% [markdown] after="A step on the first grid" tags=["notes"]
# Arrows are the pipeline's messages. Inside forward and backward are the exchanges of tp, two per block and pass; at the end those of dp and
# the norm for clipping. Only the messages between stages can be hidden: the next block needs what tp exchanges.

# %% [markdown] after="And here is the memory of each rank on a grid of your choice. Why do the ranks of the two stages differ? What changes without `fsdp`?" tags=["notes"]
# There are two reasons to collect: the first stage has the embedding and the last one the output matrix, and in 1F1B the first stage has
# two micro-batches in flight, and the last just one. The logits are on the last stage alone.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Ranks 0, 1, 4 and 5 are the first stage. Parameters, gradients and optimizer state are split along tp, pp and dp, so a rank has about an
# eighth of each. Whatever comes and goes within a step counts as activations here, including the gathered blocks.

# %% [markdown] after="## From a shell" tags=["notes"]
# For 1: tp inside a node, then cp; dp and pp across nodes. For 2: a rank's slots are counted for its own tokens, so different grids drop different
# tokens; with capacity 4.0 and four experts nothing is dropped, and the losses agree. For 3: activations grow tenfold, and with them tp and
# pp; weights a hundredfold, and with them dp. For 4: the bytes stay, as there are as many tokens, and attention's work grows tenfold. dp has
# only one text to share, so cp must take over.
