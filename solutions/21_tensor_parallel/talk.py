# %% [markdown] after="# 21 A tensor parallel transformer block" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the shards" tags=["notes"]
# Columns first, then rows, so that nothing is exchanged between the two: that is part 04 again. In the picture on the title slide, a rank's
# rows belong to the hidden units that its columns of the first matrix make. Students ask about more ranks than heads: that does not work
# here, as a rank has whole heads.

# %% [markdown] after="Name its kind" tags=["notes"]
# Have the four gradients called out first: rank 2 has 3, 3, 3, and the whole is 10, 10, 10. Stress that no rank is wrong: each has the
# right gradient of its own part of the work.

# %% [markdown] after="Name its kind" tags=["slide"]
# ## A question for the room
#
# Each rank goes on with the gradient that it has. What happens to the weights below?

# %% [markdown] tags=["fragment"]
# They are replicated, and get another gradient on each rank. After a step they are not the same any more, and no error says so.

# %% [markdown] after="The input was replicated, and its gradient is partial. An operator must make it whole again, and nothing on the way forward shows that:" tags=["notes"]
# The letters f and g are those of the Megatron paper. A rule to remember: what copies forward sums backward, and what sums forward copies
# backward, because backward is the transpose.

# %% [markdown] after="Draw the two" tags=["notes"]
# Striped with a plus is partial. Compare the way back of f with the way forward of g: it is the same exchange. Ask where they stand in the
# block: f before the matrices that are cut by columns, g behind those that are cut by rows.

# %% [markdown] after="Draw the two" tags=["slide-50"]
# ## A question for the room
#
# How many all-reduces does a block need in a step, forward and backward?

# %% [markdown] tags=["fragment"]
# Four: g in the attention and in the MLP on the way forward, and f in each on the way back.

# %% [markdown] after="An operator on the course's autograd is made by `Tensor.from_operation(data, inputs, backward)`: the result, the tensors that it was made" tags=["notes"]
# `backward` returns a tuple, one gradient for each input. The most common slip is the missing comma: `return grad` instead of `return
# (grad,)`.

# %% [markdown] after="Doubling" tags=["notes"]
# Ask for the output first: it is 2, whatever x is. `backward` sees only the gradient of its result, so f and g will look just like this,
# with one all-reduce in one of two places.

# %% [markdown] after="## Your turn: f and g" tags=["notes"]
# Before you show code, ask which of the two sends forward, which backward, and how much: each once, an array of the size of x.

# %% [markdown] after="Exercise: copy_to_group" tags=["notes"]
# The all-reduce is inside `backward`, and its result goes into a fresh array: writing into `grad` would spoil what the residual connection
# gets. Many divide by the number of ranks, as in data parallel. But these are summands of one gradient, so they must be summed.

# %% [markdown] after="Exercise: reduce_from_group" tags=["notes"]
# Point at the lambda: nothing is sent on the way back. With an all-reduce there as well, the gradients of the split work become n times too
# large, and no error says so.

# %% [markdown] after="## Do they work?" tags=["notes"]
# The third check is the strict one: a block on two ranks against one process. If only that one fails, look at LayerNorm first: its
# gradients lie below f, and are right only if f has summed.

# %% [markdown] after="## The loss, when nobody has all logits" tags=["notes"]
# Collect answers to the last question: three numbers for each token, the largest logit, the sum of the exponentials, and the label's logit.
# All ranks must subtract the same m. If each subtracts its own largest, their sums do not fit together.

# %% [markdown] after="Exercise: vocab_parallel_cross_entropy" tags=["notes"]
# Point at the two all-reduces: the maximum first, as the exponentials need it, then the sums, with one number appended. A label of another
# rank's words must be left out; a negative index would silently take a word from the end. Backward sends nothing: each rank has the softmax
# of its words.

# %% [markdown] after="## What it costs" tags=["notes"]
# Let the room estimate: an activation has 4 × 32 × 64 numbers, 33 kB, and a ring of four sends 1.5 times that for an all-reduce. There are
# five: four of the block, and one of the f before the logits.

# %% [markdown] after="Count the bytes" tags=["notes"]
# The loss itself cannot be seen: 1.5 kB of 247 kB. Gathering the logits adds 768 kB, and that grows with the vocabulary, while the rest
# does not.

# %% [markdown] after="Count the bytes" tags=["slide"]
# ## A question for the room
#
# Why may the labels' logits go along as one number?

# %% [markdown] tags=["fragment"]
# The loss is a mean over the tokens, and the mean needs only their sum. The largest logit and the sum of exponentials go into a logarithm, token
# by token: these must be known one by one.

# %% [markdown] after="A rank holds its own words' logits, 256 kB of 1 MB here. With 50,000 words and 8 × 2,048 tokens, all logits have 3.3 GB in float32." tags=["notes"]
# Their gradient is as large again. For question 1: LayerNorm, and all that is replicated below f, gets another gradient on each rank;
# comparing a checksum of these weights over the ranks would show it. For 2: beyond some n a step is mostly exchange, so tp stays within a
# machine.
