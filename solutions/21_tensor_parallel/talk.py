# %% [markdown] after="# 21 A tensor parallel transformer block" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="In parts 04 and 06, we split fc1 by columns and fc2 by rows. A transformer block is split the same way, twice (Shoeybi et al., 2019," tags=["notes"]
# Columns first, then rows, so nothing is exchanged between the two: that is part 04 again. In the picture on the title slide, a rank's rows
# belong to the hidden units that its columns of the first matrix produce. Students may ask about using more ranks than heads. That does not
# work here, because a head is not split.

# %% [markdown] after="Name its kind" tags=["notes"]
# Have the room call out the four gradients first: rank 2 has 3, 3, 3, and the whole is 10, 10, 10. Stress that no rank is wrong: each has
# the right gradient of its own part of the work.

# %% [markdown] after="Name its kind" tags=["slide"]
# ## A question for the room
#
# Suppose each rank carries on with the gradient it has. What happens to the weights of the layers below?

# %% [markdown] tags=["fragment"]
# They are replicated, but get a different gradient on each rank. After one step they are no longer the same, and no error tells you.

# %% [markdown] after="The input was replicated, but its gradient is partial. An operator must make it whole again, and nothing in the forward pass hints at" tags=["notes"]
# The letters f and g come from the Megatron paper. A rule to remember: what copies forward sums backward, and what sums forward copies
# backward, because backward is the transpose.

# %% [markdown] after="Draw the two" tags=["notes"]
# Stripes with a plus sign mean partial. Compare backward of f with forward of g: it is the same exchange. Ask where they go in the block: f
# before the matrices that are split by columns, g after those that are split by rows.

# %% [markdown] after="Draw the two" tags=["slide-50"]
# ## A question for the room
#
# How many all-reduces does a block need in one step, forward and backward?

# %% [markdown] tags=["fragment"]
# Four: in the forward pass, g in attention and in the MLP; in the backward pass, f in each of them.

# %% [markdown] after="You make an operator for the course's autograd with `Tensor.from_operation(data, inputs, backward)`: the result, the tensors it was" tags=["notes"]
# `backward` returns a tuple, with one gradient per input. The most common slip is the missing comma: `return grad` instead of
# `return (grad,)`.

# %% [markdown] after="Doubling" tags=["notes"]
# Ask for the output first: it is 2, whatever x is. `backward` sees only the gradient of its result, so f and g will look just like this,
# with an all-reduce in one of two places.

# %% [markdown] after="## Your turn: f and g" tags=["notes"]
# Before you show any code, ask which of the two sends in the forward pass, which in the backward pass, and how much: each sends once, an
# array the size of x.

# %% [markdown] after="Exercise: copy_to_group" tags=["notes"]
# The all-reduce sits inside `backward`, and its result goes into a fresh array: writing into `grad` would corrupt what the residual
# connection gets. Many students divide by the number of ranks, as in data parallel training. But these are terms of one gradient, so they
# must be summed.

# %% [markdown] after="Exercise: reduce_from_group" tags=["notes"]
# Point at the lambda: backward sends nothing. With an all-reduce there as well, the gradients in the split part would be n times too large,
# and no error would tell you.

# %% [markdown] after="## Do they work?" tags=["notes"]
# The third check is the strict one: it compares a block on two ranks with the same block on one process. If only that one fails, look at
# LayerNorm first: its gradients are computed below f, and are right only if f has summed.

# %% [markdown] after="## What if f does nothing in backward?" tags=["notes"]
# Have the room draw both losses and both distances before you run it. This is the forgotten all-reduce again: nothing hangs, nothing
# crashes. The teacher's blocks are random; all that matters is that the loss falls.

# %% [markdown] after="Break f" tags=["notes"]
# The broken f returns x itself: forward is unchanged, and the gradient passes through as it is. The runs take a second.

# %% [markdown] after="Draw both runs" tags=["notes"]
# The losses coincide to the eye, and the broken one even ends a little lower; the LayerNorms are 0.35 apart, and they began at 1 and 0. Read
# out the printed lines: with rank 0's LayerNorms on all ranks, as after loading a checkpoint, only the broken run gets worse.

# %% [markdown] after="## The loss, when no rank has all the logits" tags=["notes"]
# Collect answers to the last question: three numbers per token, namely the largest logit, the sum of the exponentials, and the label's
# logit. All ranks must subtract the same m. If each subtracts its own maximum, their sums do not fit together.

# %% [markdown] after="Exercise: vocab_parallel_cross_entropy" tags=["notes"]
# Point at the two all-reduces: first the maximum, because the exponentials need it, then the sums, with one number appended. A label among
# another rank's words must be left out; a negative index would silently pick a word from the end. Backward sends nothing: each rank has the
# softmax of its own words.

# %% [markdown] after="## What it costs" tags=["notes"]
# Let the room estimate: an activation has 4 × 32 × 64 numbers, 33 kB, and a ring of four sends 1.5 times that for an all-reduce. There are
# five of them: four in the block, and one for the f before the logits.

# %% [markdown] after="Count the bytes" tags=["notes"]
# You cannot even see the loss itself: 1.5 kB of 247 kB. Gathering the logits adds 768 kB, and that grows with the vocabulary, while the
# rest does not.

# %% [markdown] after="Count the bytes" tags=["slide"]
# ## A question for the room
#
# Why can the labels' logits be sent as a single number?

# %% [markdown] tags=["fragment"]
# The loss is a mean over the tokens, and the mean needs only their sum. The largest logit and the sum of the exponentials go into a
# logarithm, token by token, so they must be known for each token.

# %% [markdown] after="A rank holds only its own words' logits: here 256 kB of 1 MB. With 50,000 words and 8 × 2,048 tokens, all logits take 3.3 GB in float32." tags=["notes"]
# The gradient of the logits is just as large. If PyTorch is installed, run the comparison: the differences are of the size of rounding
# errors in float64. Point out what is missing there: nobody calls f or g.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: none. Comparing a checksum of the replicated weights across the ranks would show it; it costs next to nothing, so every hundred
# steps or so. For 2: beyond some n, a step is mostly communication, so tensor parallelism stays within a node.
