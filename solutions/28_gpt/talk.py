# %% [markdown] after="# 28 A GPT on every axis" tags=["notes"]
# Train one grid live: it takes half a minute. The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on
# the way, each with its answer on the next key.

# %% [markdown] after="Look for the functions" tags=["notes"]
# If you opened this with `make lecture`, the solutions are there. If a name is missing, run the command in brackets in a shell, and then
# this cell again.

# %% [markdown] after="## Text, and a grid" tags=["notes"]
# Bytes make a vocabulary of 256, so no tokenizer is needed. Write ln 256 = 5.55 on the board: it is the loss of a model that gives each
# byte the same chance. You will need it when the loss is drawn.

# %% [markdown] after="Look at the text" tags=["notes"]
# These are 300 of four million bytes. The model sees 128 at a time, so about three lines of this.

# %% [markdown] after="Draw the grid" tags=["notes"]
# Solid frames are the tp groups, dashed ones the pp groups, and the two boxes are the copies of the model. Ask who exchanges gradients with
# rank 0: rank 4, which has the same place in the other box. Neighbours are tp, as they exchange most.

# %% [markdown] after="Draw the grid" tags=["slide"]
# ## A question for the room
#
# Eight ranks, two cores. Which grid will be the fastest here, and which on eight GPUs?

# %% [markdown] tags=["fragment"]
# Here, the one that sends and waits least: data parallel. On GPUs, the one whose parts fit into memory, with tp on the fastest links.

# %% [markdown] after="How a run goes" tags=["notes"]
# Go through the table with one question: message or collective, and how often? tp exchanges in each block, pp for each micro-batch, dp once
# after backward.

# %% [markdown] after="## Before, and after" tags=["notes"]
# Take guesses for the first output: almost random bytes, many that nobody can print. After 80 steps, expect the look of Python with hardly
# a real word.

# %% [markdown] after="Train, and write" tags=["notes"]
# It takes half a minute, so let it run while you speak. The model is put together on rank 0 for writing. The training itself never has it
# in one place.

# %% [markdown] after="Draw the loss" tags=["notes"]
# It begins at about 6, a little above 5.55, as random logits are worse than equal ones. The first fall is cheap: the model learns which
# bytes are frequent. Spelling comes later.

# %% [markdown] after="Train on other grids" tags=["notes"]
# Ask for expectations before you run it: which line will be the lowest? There should be only one. Point at "one rank" in the output: it is
# the run without any exchange, against which all others are compared.

# %% [markdown] after="Draw the losses" tags=["notes"]
# The title says how far apart they are. If a line leaves the others, its grid names the suspect: only one of them uses `gpipe_step`, only
# one has sequence parallel without fully sharded.

# %% [markdown] after="Draw the losses" tags=["slide"]
# ## A question for the room
#
# Six programs that share out the work in six ways: why is it one line?

# %% [markdown] tags=["fragment"]
# The weights are drawn before they are cut, the texts chosen before they are shared out, and every sum is the same but for its order.

# %% [markdown] after="## What it costs" tags=["notes"]
# Let the room vote before the picture. tp and pp send activations, which grow with the batch. dp sends gradients or weights, which grow
# with the model.

# %% [markdown] after="Draw the bytes" tags=["notes"]
# Compare the first grid with the last: there dp sends more, as fully sharded weights are gathered again for each micro-batch. The
# pipeline's part is always the smallest, an activation for each micro-batch. One rank alone sends nothing, so it has no bar.

# %% [markdown] after="Draw the bytes" tags=["slide-50"]
# ## A question for the room
#
# Which part of the bytes would not grow with more texts in a step?

# %% [markdown] tags=["fragment"]
# dp: gradients are as large as the weights. tp and pp send activations.

# %% [markdown] after="And the memory of each rank on the last grid, with everything switched on. Why do the ranks of the two stages differ?" tags=["notes"]
# Two reasons to collect: the first stage has the embedding and the last one the output's matrix, and in 1F1B the first stage has two
# micro-batches in flight, the last one only one. The logits are on the last stage alone.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Ranks 0, 1, 4 and 5 are the first stage. Parameters, gradients and optimizer state are cut along tp, pp and dp, so a rank has about an
# eighth of each. What comes and goes in a step is counted as activations here, the gathered blocks included.

# %% [markdown] after="## From a shell" tags=["notes"]
# For 1: tp inside a machine, dp and pp across. For 2: a rank's slots are counted for its own tokens, so other grids drop other tokens; with
# capacity 4.0 and four experts nothing is dropped, and the losses agree. For 3: activations by ten, so tp and pp, and weights by a hundred,
# so dp.
