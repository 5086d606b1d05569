# %% [markdown] after="# 06 Megatron model parallelism, backward" tags=["notes"]
# The point of this part is what is *not* sent. The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come
# on the way, each with its answer on the next key.

# %% [markdown] after="In part 04 each rank had some *rows* of the weight of fc2, and the output $Y = \sum_r X_r W_r$ was made by an all-reduce. Its gradient $G$" tags=["notes"]
# Go back to the picture on the first slide: 8 by 3 on each rank, complete, and just the hidden units that it has from fc1. What students
# get wrong is the factor: they divide *G* by the number of ranks, as if it had to be shared out.

# %% [markdown] after="Draw what a rank computes" tags=["slide"]
# ## A question for the room
#
# Forward ended with an all-reduce. Which exchange does its backward need?

# %% [markdown] tags=["fragment"]
# None. The output is a sum with a factor of one for each summand, so each summand's gradient is that of the output.

# %% [markdown] after="## A worked example" tags=["notes"]
# Take bets before you go on, as the next slide shows the answer. The summands are 1, 2, 3 and 4 in every place, and *G* is the output
# itself. If rank 2's summand moves, is the slope 3, its own number, or 2.5, a quarter of the output, or 10?

# %% [markdown] after="Move one number" tags=["notes"]
# Point at `if rank == who`: one rank changes its summand, and the all-reduce carries the change to all. Move rank 0 instead of rank 2, in
# both calls: still 10. The loss is quadratic, so this difference is exact up to rounding.

# %% [markdown] after="Move one number" tags=["slide"]
# ## A question for the room
#
# Rank 2 changes one number of its summand by 0.1. By how much does the output change?

# %% [markdown] tags=["fragment"]
# By 0.1. That is the whole proof.

# %% [markdown] after="Exercise: megatron_collect_backward_output" tags=["notes"]
# Three habits to name: the slice of part 05, a division by mp_size, and an all-reduce of what all have already, which makes it mp_size
# times too large. A rank's rows of *W* have all outputs, so it needs all columns of *G*.

# %% [markdown] after="Exercise: megatron_collect_backward_x" tags=["notes"]
# Compare the shapes: in part 05 a rank's product had all hidden units and was one summand, here it has only its own and is complete. A
# reduce-scatter would add up gradients of different hidden units.

# %% [markdown] after="Check" tags=["notes"]
# The first two checks only want the argument back, and no traffic, so they could be passed without understanding. The third says why that
# is right: around a real product, it gives the columns of the unsharded gradient.

# %% [markdown] after="Draw the gradient of the input" tags=["notes"]
# It is the picture of the first slide, now through both functions. Remember the last picture of part 05: the same columns on the same
# ranks, there after a reduce-scatter, here after no exchange at all.

# %% [markdown] after="Count the bytes" tags=["notes"]
# 4.3 kB against 94 kB. All of the upper bar is the all-reduce of part 04; backward has added nothing. Of the lower one, about half is
# forward and half backward.

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# Then where is the exchange in backward?

# %% [markdown] tags=["fragment"]
# Before fc1: the gradient of its input is a sum over the ranks. Here fc1 is the first layer, and nobody needs it.

# %% [markdown] after="Draw the memory" tags=["notes"]
# 15 kB against 61 kB. Somebody may object that the naive one shrinks to 15 kB after the exchange: true, but memory has to be enough for the
# largest moment.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: an all-reduce of the gradient of fc1's input, as fc1 is split by columns and each rank has only a summand of it. 2: four, for each pair
# one in forward and one in backward.
