# %% [markdown] after="# 08 A fully sharded layer" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="In data parallel training, everything is *replicated*: each rank holds all parameters, all gradients and the whole optimizer state." tags=["notes"]
# Count the numbers in the picture on the first slide: 192 in all and 24 on each rank, so a shard is a row and a half. No rank can compute
# anything with that alone. Read the table by its third and fourth column: each line changes a placement. Stress the sum in the backward pass: if the layer divided as in part 07, the gradient would be divided twice in
# part 09.

# %% [markdown] after="In data parallel training, everything is *replicated*: each rank holds all parameters, all gradients and the whole optimizer state." tags=["slide"]
# ## A question for the room
#
# A model with a billion parameters, in float32 with Adam, on 8 ranks. How much does each rank hold, without and with stage 3?

# %% [markdown] tags=["fragment"]
# 16 bytes per parameter: 16 GB without, 2 GB with.

# %% [markdown] after="A view and a copy" tags=["notes"]
# Ask for both numbers: 8.0 MB for the view, 1.0 MB for the copy. `part.base` refers to the whole array and keeps it alive. In the exercise,
# a view passes every comparison of values; only the memory check catches it.

# %% [markdown] after="A view and a copy" tags=["slide"]
# ## A question for the room
#
# Why gather the weight a second time in the backward pass?

# %% [markdown] tags=["fragment"]
# Because it was dropped. If you kept it, every rank would hold every layer in full by the end of the forward pass.

# %% [markdown] after="## Your turn" tags=["notes"]
# Work through the padding on the board: 10 numbers on 4 ranks make shards of 3, and the last one has one number and two zeros. Rounding
# down loses numbers. Without padding the last shard is shorter, and `Allgather` needs equal parts.

# %% [markdown] after="Exercise: ZeroDPStage3FCLayer" tags=["notes"]
# Do not go through all of it. Point out `_gather`, where `full` is a local variable and nothing stays in `self`; the slice that cuts off
# the padding; and `self.x = None` at the end.

# %% [markdown] after="Check backward and memory" tags=["notes"]
# To show a failure, have `forward` keep the gathered weight as `self.w`: the values are still right, but the last check reports how many
# bytes a rank keeps. Run the cell with the class again before the checks.

# %% [markdown] after="Count the bytes" tags=["notes"]
# Have the room take one all-gather of the layer as the unit: two of them plus a reduce-scatter make three, an all-reduce makes two. Here
# that is 2.1 MB versus 1.4 MB. Neither depends on the batch, which is 4 here.

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# How much more does this send than plain data parallelism?

# %% [markdown] tags=["fragment"]
# Half as much again: two all-gathers and a reduce-scatter are three halves of an all-reduce.

# %% [markdown] after="Draw the memory" tags=["notes"]
# The upper bar is measured in the process, so expect about an eighth of 1.6 MB, but not exactly that. Adam's state is in neither bar:
# unsharded, it is as large as the parameters and gradients together. Part 09 shards it.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: if you keep the weights, all 12 are whole when the forward pass ends; if not, a rank holds one whole weight and 12 shards; on 8 ranks,
# that is 2.5 weights in total. 2: a second whole weight at the same time; in return, the exchange can hide behind the computation.
