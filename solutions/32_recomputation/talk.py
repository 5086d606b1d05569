# %% [markdown] after="# 32 Memory for time" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows
# the answer. Nothing here takes longer than a few seconds.

# %% [markdown] after="Backward needs what forward has computed: the inputs of each product, the mask of each dropout. These **activations** pile up from the" tags=["notes"]
# Let the room say what a layer keeps: a product its input, GELU three arrays, attention its weights. Answer to the last question: both
# double it. Only the weights do not grow with the number of texts.

# %% [markdown] after="Draw the memory" tags=["notes"]
# A mountain: up in forward, down in backward, and the top is where forward ends. Each stair is a layer; MLPs are the higher ones. The tips
# in backward are gradients of activations that live only for a moment.

# %% [markdown] after="Draw the memory" tags=["slide"]
# ## A question for the room
#
# A model twice as deep, on the same device. What could you change so that its activations fit?

# %% [markdown] tags=["fragment"]
# Smaller micro-batches, with more of them per step; tensor and sequence parallelism, which shard activations; a pipeline, which shards the
# layers; or keep fewer activations. The last one needs no other device.

# %% [markdown] after="**Recomputation**, also called activation checkpointing, keeps only the input of a part of the model. When backward comes to it, its" tags=["notes"]
# Ask for the price before you say it: forward is a third of forward and backward together, so a third more. It is not free, but memory may
# be what stops you.

# %% [markdown] after="## A worked example: an operation with a backward of its own" tags=["notes"]
# Point at the difference between run_backward and backward: in part 14, hooks send buckets, and what is left goes at the end of backward.
# A backward within backward must not end it.

# %% [markdown] after="Differentiate within an operation" tags=["notes"]
# The gradient is 2 x times what arrives: 6 and 80. `inner` shares the array with x, and costs nothing; but the graph begins there, so
# nothing flows on to what x was computed from. That is what detaching means.

# %% [markdown] after="## A worked example: who drops what?" tags=["notes"]
# In a tensor parallel block, dropout after an all-reduce acts on replicas, dropout on attention's weights on shards. Equal masks on shards
# are a silent fault: nothing crashes, the noise is just less random than you think.

# %% [markdown] after="Draw, put back, draw again" tags=["notes"]
# Replicated numbers agree on all ranks, sharded ones on none. Both lines agree on each rank, as the states are put back. Without the last
# line of the cell, the second line would differ.

# %% [markdown] after="Draw, put back, draw again" tags=["slide-50"]
# ## A question for the room
#
# A pipeline rank has several micro-batches under way. Why is it not enough to seed the generator before each of them?

# %% [markdown] tags=["fragment"]
# Then all micro-batches would drop the same units. The states must be different for each, and known again in its backward: so they are
# kept with the inputs.

# %% [markdown] after="## Your turn: checkpoint" tags=["notes"]
# Three traps, each a real fault. The second one is PyTorch's old warning: none of the inputs have requires_grad=True. The third shows only
# if something else draws between forward and backward, as another micro-batch in a pipeline does.

# %% [markdown] after="Exercise: checkpoint" tags=["notes"]
# Read it in two halves: forward without a graph, backward with one. Point at `now`: states are put back twice. The tensor without numbers
# makes the result part of the graph when only parameters want gradients. The closure holds inputs and states, and nothing else.

# %% [markdown] after="## A worked example: collectives are called again" tags=["notes"]
# Take answers: two in forward, two in backward without recomputation; with it, two more. If one rank does not recompute, the others wait
# in an all-reduce that it never calls.

# %% [markdown] after="Define a layer" tags=["notes"]
# It subtracts the mean over the ranks: one all-reduce in forward, and one in backward.

# %% [markdown] after="Trace a step" tags=["notes"]
# Six blue bars per rank: forward, forward, then recomputation and backward for the second layer, and again for the first. The data are the
# same each time, and are sent each time.

# %% [markdown] after="## Your turn: segments" tags=["notes"]
# Why the largest of all ranks: if each rank chose by its own measurements, they would recompute different layers, and call different
# collectives. Why not all as one range: its recomputation would hold everything at once. Draw the sum on the board.

# %% [markdown] after="Measure the layers" tags=["notes"]
# Attention and the MLP keep megabytes, and their inputs are small. One range for everything saves nothing, and costs a forward; each layer
# on its own saves most. Two halves are in between.

# %% [markdown] after="With 28 layers there are billions of choices. But for what comes after layer $i$, of all choices for the layers up to $i$ that hold the" tags=["notes"]
# This is dynamic programming. Ask what a state must hold: where we are, and the bytes held so far. The ranges so far matter no more.

# %% [markdown] after="Exercise: segments" tags=["notes"]
# Two ways to go on from a layer: keep it, or begin a range there. A range that does not fit does not fit either if it is longer, hence
# `break`. Times change from run to run, so the choice may, too.

# %% [markdown] after="## What it costs" tags=["notes"]
# Ask for guesses: with a budget of half, how much of the price of recomputing everything?

# %% [markdown] after="Draw memory over time" tags=["notes"]
# The dashed line stays lowest and lasts longest. The chosen one stays below the dotted line and ends in between. Each little peak in
# backward is a layer or a range that is computed again, and freed.

# %% [markdown] after="Draw memory over time" tags=["slide-50"]
# ## A question for the room
#
# Which layers are cheap to recompute for what they free?

# %% [markdown] tags=["fragment"]
# Those that keep many bytes and take little time: attention's scores and softmax, GELU, dropout, norms. Matrix products take most of the
# time. That is selective recomputation: almost all of the memory back, for a few percent of the time.

# %% [markdown] after="Draw the time" tags=["notes"]
# Less than a third more, as backward is more than twice as long as forward here. On a loaded machine, these times vary; run it again.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: the root of n, Chen's result, for layers whose inputs are as large as what they keep; memory then grows with the root of the
# depth. If an input is small next to what a layer keeps, single layers are better. For 2: results of collectives are small next to what
# they cost; Megatron-LM keeps such outputs by recomputing attention's core only.
