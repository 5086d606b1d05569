# %% [markdown] after="# 05 Naive model parallelism, backward" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the gradient of the output" tags=["slide"]
# ## A question for the room
#
# Forward was an all-gather. Which exchange is its backward?

# %% [markdown] tags=["fragment"]
# A reduce-scatter. Everybody used a rank's part, so its gradient is a sum over all ranks; and a rank needs only its own part of that.

# %% [markdown] after="Forward, the ranks collected the input $X$ of fc2, multiplied by their columns of $W$, and collected the output $Y$. Backward, the gradient" tags=["notes"]
# Go through the three formulas, and ask of each which columns of *G* a rank needs, and whether its result is complete. The first two are.
# The third is a sum over the ranks, because every rank multiplied all of *X* in forward.

# %% [markdown] after="Reduce and scatter" tags=["notes"]
# The powers of ten show who has contributed: every result is 1111 times a number from 1 to 8. Let the room write down rank 1's two numbers
# before you draw; many say 2222 and 6666, the second column.

# %% [markdown] after="Draw what MPI delivers" tags=["notes"]
# Rank 1 has 3333 and 4444: all four ranks are in the sum, but it is the wrong place. The receive buffer has the shape of a column, so
# nothing complains. It is the trap of part 03 again, this time before the exchange and not after it.

# %% [markdown] after="A column is not one block" tags=["notes"]
# In the last line each block is one column, 1 and 5, then 2 and 6, and `np.array` has copied them into one piece of memory. Ask about the
# contiguous transpose: it works, too, if what comes back is transposed again.

# %% [markdown] after="A column is not one block" tags=["slide"]
# ## A question for the room
#
# Which numbers does Reduce_scatter give to rank 1?

# %% [markdown] tags=["fragment"]
# The second block of the flat array. Those are rows, not columns, so they must be put in order before.

# %% [markdown] after="## Your turn: the gradient of the output" tags=["notes"]
# Ask why every rank has *G*: forward ended with the whole output everywhere, so every rank computed the same loss. Take the index that is
# given, and not `rank`: with two groups of two, rank 3 has index 1.

# %% [markdown] after="Exercise: naive_collect_backward_output" tags=["notes"]
# Columns that lie side by side, not every mp_size-th one, and no division: it is a part of the gradient, unchanged. Without
# `np.ascontiguousarray` the values are right, but the view keeps the whole gradient in memory.

# %% [markdown] after="Exercise: naive_collect_backward_x" tags=["notes"]
# `np.split` and `np.array` make (ranks, samples, columns): the blocks of the worked example. `mine` has the right layout already, so
# nothing is left to do after the exchange. The usual mistake is to divide by mp_size; it is a sum.

# %% [markdown] after="Check" tags=["notes"]
# For the first function, the check gives each rank an index that is not its own, so code that looks at `rank` fails. For the second, an
# all-reduce and a slice have the right values and too many bytes.

# %% [markdown] after="Draw the gradient of the input" tags=["notes"]
# Only rank 0 gives numbers here, the others give zeros: all that you see on ranks 1 to 3 has come from rank 0. Compare with the first
# picture of part 03: each rank has the gradient of just those hidden units that it computed.

# %% [markdown] after="Draw the gradient of the input" tags=["slide-50"]
# ## A question for the room
#
# In backward of the output there is no exchange at all. Why?

# %% [markdown] tags=["fragment"]
# Every rank has the whole gradient of the output already. It takes its columns.

# %% [markdown] after="Count the bytes" tags=["notes"]
# 46 kB against 92 kB. The all-reduce makes the same sums, and then sends every rank three quarters that it throws away. Part 03 had the
# same factor, with the all-gather in place of the reduce-scatter.

# %% [markdown] after="Draw the memory" tags=["notes"]
# What has to fit is the moment before the exchange: the summand of 61 kB, and beside it the copy in blocks. Ask whether one could avoid a
# summand over all hidden units: part 06 does.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: it is no coincidence: what forward copies to all ranks, backward sums over them. An all-reduce needs nothing in backward if all ranks
# go on to compute the same loss; that is part 06. 2: only this rank has these columns of *W*, and it has all of *X* and the same columns of
# *G*.
