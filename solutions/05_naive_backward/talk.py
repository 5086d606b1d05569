# %% [markdown] after="# 05 Naive model parallelism, backward" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="Draw the gradient of the output" tags=["slide"]
# ## A question for the room
#
# The forward pass all-gathered the input of fc2. Which exchange does the gradient of that input need?

# %% [markdown] tags=["fragment"]
# A reduce-scatter. Every rank's part was used by all ranks, so its gradient is a sum over all ranks; and a rank needs only its own part of
# that sum.

# %% [markdown] after="In the forward pass, the ranks collected the input $X$ of fc2, multiplied it by their columns of $W$, and collected the output $Y$. In the" tags=["notes"]
# Go through the three formulas. For each one, ask which columns of *G* a rank needs and whether its result is complete. The first two are.
# The third is a sum over the ranks, because in the forward pass every rank multiplied all of *X*.

# %% [markdown] after="## Each operator has a conjugate" tags=["notes"]
# Ask first: X and Y went through the same all-gather, so do their gradients go through the same exchange? Most people say yes.

# %% [markdown] after="Here are the lines that this course needs. Each has a mirror: what is forward in one is backward in the other." tags=["notes"]
# Find the lines of this part: the first two. Then ask for the conjugate of an all-reduce. If all ranks go on with the same work, it is
# nothing; if each goes on with its own, their gradients are partial, and it is an all-reduce again.

# %% [markdown] after="Draw the lines of this part" tags=["notes"]
# The forward lines are equal, the backward lines are not. Ask what a rank did with what it had collected: with *X* its own columns of the
# product, with *Y* the same loss as everybody else. Part 21 meets the same question in autograd, where no loss shows the mistake.

# %% [markdown] after="Reduce and scatter" tags=["notes"]
# The powers of ten show who has contributed: every result is 1111 times a number from 1 to 8. Have the room write down rank 1's two numbers
# before you draw the picture; many say 2222 and 6666, the second column.

# %% [markdown] after="Draw what MPI delivers" tags=["notes"]
# Rank 1 has 3333 and 4444: all four ranks are in the sum, but it is the sum of the wrong numbers. The receive buffer has the shape of a
# column, so nothing complains. It is the trap from part 03 again, this time before the exchange instead of after it.

# %% [markdown] after="A column is not one block" tags=["notes"]
# In the last line, each block is one column: 1 and 5, then 2 and 6. `np.array` has copied the blocks into one piece of memory. Ask about a
# contiguous transpose: it works too, as long as you transpose the result back.

# %% [markdown] after="A column is not one block" tags=["slide"]
# ## A question for the room
#
# Which numbers does Reduce_scatter give rank 1?

# %% [markdown] tags=["fragment"]
# The second block of the flat array, which here is half a row. Blocks are not columns, so the numbers have to be reordered first.

# %% [markdown] after="## Your turn: the gradient of the output" tags=["notes"]
# Ask why every rank has *G*: the forward pass ended with the whole output everywhere, so every rank computed the same loss. Use the index
# you are given, not `rank`: with two groups of two, rank 3 has index 1.

# %% [markdown] after="Exercise: naive_collect_backward_output" tags=["notes"]
# A rank's columns are adjacent, not every mp_size-th one, and nothing is divided: the result is a part of the gradient, unchanged.
# Without `np.ascontiguousarray` the values are right, but the view keeps the whole gradient in memory.

# %% [markdown] after="Exercise: naive_collect_backward_x" tags=["notes"]
# `np.split` and `np.array` give you (ranks, samples, columns), the blocks of the worked example. `mine` already has the right layout, so
# nothing is left to do after the exchange. The usual mistake is to divide by mp_size, but this is a sum.

# %% [markdown] after="Check" tags=["notes"]
# For the first function, the check gives each rank an index that is not its own, so code that looks at `rank` fails. For the second, an
# all-reduce followed by a slice gives the right values but sends too many bytes.

# %% [markdown] after="Draw the gradient of the input" tags=["notes"]
# Only rank 0 contributes numbers here, the others contribute zeros, so everything you see on ranks 1 to 3 came from rank 0. Compare with
# the first picture of part 03: each rank has the gradient of exactly the hidden units it computed.

# %% [markdown] after="Draw the gradient of the input" tags=["slide-50"]
# ## A question for the room
#
# For the gradient of the output, there is no exchange at all. Why?

# %% [markdown] tags=["fragment"]
# Every rank already has all of it and just takes its columns.

# %% [markdown] after="Count the bytes" tags=["notes"]
# 46 kB versus 92 kB. The all-reduce computes the same sums, but then also sends every rank the other three quarters, which the rank throws
# away. Part 03 had the same factor, with an all-gather instead of the reduce-scatter.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Memory is tightest just before the exchange: it holds the term of 61 kB, plus its copy in blocks. Ask whether a term for all hidden units
# could be avoided: part 06 does that.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: because of what the ranks do with the result. X is used for different work, so each rank has one term of its gradient. Y is used for
# the same loss, so each rank has all of its gradient. A reduce-scatter of Y's gradient would add up equal copies: mp_size times too much. A
# slice of X's gradient would leave out the other ranks' terms. Neither raises an error. 2: only this rank has these columns of *W*, and it
# has all of *X* and the same columns of *G*.
