# %% [markdown] after="# 06 Megatron model parallelism, backward" tags=["notes"]
# The point of this part is what is *not* sent. The grey lines are folded cells; Shift-Enter runs them. There are three questions for the
# room along the way; the next key press shows the answer.

# %% [markdown] after="In part 04, each rank had some *rows* of fc2's weight, and an all-reduce computed the output $Y = \sum_r X_r W_r$. Its gradient $G$ is" tags=["notes"]
# Go back to the picture on the first slide: each rank has 8 by 3 numbers, and they belong to exactly the hidden units that fc1 left on this
# rank. Leave open what $G_r$ is. What students get wrong is the factor: they divide *G* by the number of ranks, as if it had to be shared
# out.

# %% [markdown] after="## A worked example" tags=["notes"]
# Take bets before you go on, because the next slide shows the answer. The partial outputs are 1, 2, 3 and 4 in every place, and *G* is the
# output itself. If rank 2's partial output changes, is the slope 3 (its own number), 2.5 (a quarter of the output) or 10?

# %% [markdown] after="Move one number" tags=["notes"]
# Point out `if rank == who`: one rank changes its partial output, and the all-reduce carries the change to all ranks. Change rank 0 instead
# of rank 2, in both calls: still 10. The loss is quadratic, so this finite difference is exact up to rounding.

# %% [markdown] after="Move one number" tags=["slide"]
# ## A question for the room
#
# Rank 2 changes one number in its partial output by 0.1. By how much does the output change?

# %% [markdown] tags=["fragment"]
# By 0.1. That is the whole proof.

# %% [markdown] after="## Your turn: from the gradient of the output to that of fc1's output" tags=["notes"]
# Let the room name the placement of each gradient before you point at the picture. Then the question marks answer themselves: nothing
# changes from right to left.

# %% [markdown] after="Draw the lines of this part" tags=["slide"]
# ## A question for the room
#
# The forward pass ended with an all-reduce. Which exchange does its backward pass need?

# %% [markdown] tags=["fragment"]
# None. Each term enters the output with a factor of one, so its gradient is the gradient of the output.

# %% [markdown] after="Exercise: megatron_collect_backward_output" tags=["notes"]
# Three habits to mention: the slice from part 05, a division by mp_size, and an all-reduce of what all ranks already have, which makes it
# mp_size times too large. A rank's rows of *W* cover all outputs, so it needs all columns of *G*.

# %% [markdown] after="Exercise: megatron_collect_backward_x" tags=["notes"]
# Compare the shapes: in part 05, a rank's product covered all hidden units and was partial; here it covers only the rank's own and is
# complete: sharded. A reduce-scatter would add up gradients of different hidden units.

# %% [markdown] after="Check" tags=["notes"]
# The first two checks only want the argument back and no traffic, so you could pass them without understanding why. The third shows why
# that is right: with a real product between them, the functions give the columns of the unsharded gradient.

# %% [markdown] after="Draw the gradient of the input" tags=["notes"]
# This is the picture from the first slide, now with both functions applied. Recall the picture of this gradient in part 05: the same
# columns on the same ranks, there after a reduce-scatter, here after no exchange at all.

# %% [markdown] after="Count the bytes" tags=["notes"]
# 4.3 kB versus 94 kB. All of the upper bar is the all-reduce of part 04; the backward pass has added nothing. Of the lower bar, about half
# is forward and half backward.

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# Then where is the exchange in the backward pass?

# %% [markdown] tags=["fragment"]
# Before fc1: the gradient of fc1's input is a sum over the ranks. Here fc1 is the first layer, so nobody needs it.

# %% [markdown] after="Draw the memory" tags=["notes"]
# 15 kB versus 61 kB. Somebody may object that the naive gradient shrinks to 15 kB after the exchange. That is true, but the peak has to fit
# into memory.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: an all-reduce of the gradient of fc1's input, because fc1 is split by columns and each rank has only a partial sum of it. 2: four, one
# in the forward and one in the backward pass for each pair.
