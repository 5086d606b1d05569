# %% [markdown] after="# 22 Sequence parallelism" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="In part 21, each rank had a quarter of the weights, heads and hidden units. But the LayerNorms and the residual sums are still done in" tags=["notes"]
# In the picture on the title slide, each rank has two positions at full width. This matters: in the paper's formula for a layer's
# activations, tensor parallelism leaves 10 of the 34 parts undivided (not counting attention's scores).

# %% [markdown] after="Draw the positions" tags=["slide"]
# ## A question for the room
#
# Which parts of a transformer block mix positions?

# %% [markdown] tags=["fragment"]
# Attention, and nothing else. LayerNorm, the MLP, dropout and the residual sums treat each position on its own.

# %% [markdown] after="An all-reduce is a reduce-scatter followed by an all-gather. So after a split computation, a reduce-scatter gives each rank the sum for" tags=["notes"]
# Ask what this costs in bytes: nothing, because the two halves of the all-reduce were there before. What is new is where LayerNorm and the
# residual sum happen: between the halves, on a quarter of the positions.

# %% [markdown] after="Draw the operators" tags=["notes"]
# `gather_sequence` replaces f, and `scatter_sequence` replaces g. Point at the gradient on the right of the upper operator: it is partial,
# so a rank may not simply take the slice for its own positions.

# %% [markdown] after="Draw the operators" tags=["slide-50"]
# ## A question for the room
#
# Why is the gradient of an all-gather a reduce-scatter?

# %% [markdown] tags=["fragment"]
# Each rank has used all positions for its own work, so it contributes one term of the gradient of each position. The rank that owns a
# position needs the sum.

# %% [markdown] after="## A worked example" tags=["notes"]
# Have the room write down both rows first. In memory, the first sample would get 0, 1, 10, 11: both samples of ranks 0 and 1. It should get
# 0, 10, 20, 30.

# %% [markdown] after="Gather along another dimension" tags=["notes"]
# Point at `axis=1` in the last line: it takes one `concatenate`, and therefore a copy. In the backward pass, `split` gives the same order.

# %% [markdown] after="Exercise: gather_sequence" tags=["notes"]
# Point at the reduce-scatter in `backward`. The mistake to warn about is returning the rank's own slice of `grad`: it runs, it has the
# right shape, and three of the four terms are lost. The array of splits puts each rank's positions together in memory before they are
# scattered.

# %% [markdown] after="Exercise: scatter_sequence" tags=["notes"]
# These are the same two exchanges in the opposite order. An all-reduce followed by a slice gives the right numbers but sends twice the
# bytes, and the hidden tests count them. In the backward pass, each term gets the whole gradient, not only that of the rank's own
# positions.

# %% [markdown] after="## What about LayerNorm's own gradients?" tags=["notes"]
# Before you run the cell, ask what a rank will find: the gradient of the shift is the sum, over the rank's positions, of what comes back.
# Ones come back, and a rank has two positions.

# %% [markdown] after="Name the kind" tags=["notes"]
# The trap on this slide: all ranks have the same numbers, and still the gradient is partial. Equal does not mean whole, so comparing the
# ranks would not have caught this mistake here.

# %% [markdown] after="The kinds of a block's parameters" tags=["notes"]
# Ask which ones are replicated: the scales and shifts of the two norms, four small vectors. Their all-reduce costs next to nothing, which
# is why it is so easy to forget.

# %% [markdown] after="Exercise: reduce_norm_gradients" tags=["notes"]
# A sum, not a mean: the ranks have different positions of the same texts, not different samples. The code goes by the kind. Going by shape
# instead, and treating every vector as replicated, fails as soon as a vector is sharded.

# %% [markdown] after="Now the gradients are right. Next, we *clip* them: if the gradient norm, that of all gradients as one vector, exceeds a limit, all" tags=["notes"]
# Take answers: squares of sharded gradients are added over the group, and those of replicated ones count once. If you add up all of them,
# LayerNorm counts once per rank, which makes the norm only slightly too large.

# %% [markdown] after="Exercise: clip_gradients" tags=["notes"]
# Only one number is sent. Point at the condition: it uses the norm of all gradients, which is the same on every rank. If each rank goes by
# its own norm, the ranks scale replicated gradients differently, and these weights drift apart.

# %% [markdown] after="## What if LayerNorm's gradients stay partial?" tags=["notes"]
# Take predictions for both pictures. Some will say that the loss must show it: each rank has a quarter of LayerNorm's gradient. But a
# rank's positions are a sample of all positions, so its term points roughly the same way, and Adam makes steps as large with it.

# %% [markdown] after="Leave out the reduction" tags=["notes"]
# One line decides: `reduce_norm_gradients` between backward and the optimizer's step. The runs take a few seconds.

# %% [markdown] after="Draw both runs" tags=["notes"]
# The two losses can hardly be told apart; the LayerNorms of the ranks are 0.25 apart. The printed lines show what a checkpoint of rank 0
# would make of it. Ask what to do about it in a real run: compare a checksum of the replicated weights across the ranks now and then.

# %% [markdown] after="## What it costs" tags=["notes"]
# Ask for the bytes of the three ways before you run it. The first two must be equal, and the third has two more all-gathers: ten halves of
# an all-reduce instead of eight.

# %% [markdown] after="Measure three ways" tags=["notes"]
# Different operations, same total: 786 kB in the first two ways, 983 kB in the third. Then ask what the third way buys, and go on to the
# memory.

# %% [markdown] after="Draw the memory" tags=["notes"]
# The second way still keeps the gathered inputs of the two matrices that are split by columns, in full on every rank. The third way does
# not. The scores and the hidden units are the same in all three ways: part 21 already split those.

# %% [markdown] after="Draw the memory" tags=["slide"]
# ## A question for the room
#
# The same bytes, and less memory: is there a catch?

# %% [markdown] tags=["fragment"]
# The gradients of LayerNorm are now partial. If you forget to add them up, you get no error, only weights that drift apart.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: time, because backward waits for two more gathers, unless they overlap with other work. Megatron does it this way. For 2: here each
# rank must draw a mask of its own; in part 21, where the output is replicated, all ranks must draw the same one.
