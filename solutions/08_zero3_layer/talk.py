# %% [markdown] after="# 08 A fully sharded layer" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="In data parallel training every rank holds the whole model, its gradients and the optimizer's state, all of them the same. **ZeRO**" tags=["notes"]
# Count in the picture on the first slide: 192 numbers, 24 on each rank, so a shard is a row and a half. No rank can compute with that
# alone. Stress the sum in backward: a layer that divides as in part 07 will divide twice in part 09.

# %% [markdown] after="In data parallel training every rank holds the whole model, its gradients and the optimizer's state, all of them the same. **ZeRO**" tags=["slide"]
# ## A question for the room
#
# A model of a billion parameters, float32 with Adam, on 8 ranks. What does each hold, without and with stage 3?

# %% [markdown] tags=["fragment"]
# 16 bytes a parameter: 16 GB without, 2 GB with.

# %% [markdown] after="A view and a copy" tags=["notes"]
# Ask for both numbers: 8.0 MB for the view, 1.0 MB for the copy. `part.base` is the whole array and keeps it alive. In the exercise a view
# passes all comparisons of values, and only the look at memory finds it.

# %% [markdown] after="A view and a copy" tags=["slide"]
# ## A question for the room
#
# Why gather the weight a second time in backward?

# %% [markdown] tags=["fragment"]
# Because it was dropped. Kept, all layers would be there whole when forward ends.

# %% [markdown] after="## Your turn" tags=["notes"]
# Do the padding once on the board: 10 numbers on 4 ranks make shards of 3, and the last one has one number and two zeros. Rounding down
# loses numbers. Without padding the last shard is shorter, and `Allgather` wants equal parts.

# %% [markdown] after="Exercise: ZeroDPStage3FCLayer" tags=["notes"]
# Do not read all of it. Point at `_gather`, where `full` is a local variable and nothing stays in `self`, at the slice that cuts the
# padding off, and at `self.x = None` at the end.

# %% [markdown] after="Check backward and memory" tags=["notes"]
# To show a failure, have `forward` keep the gathered weight as `self.w`: forward and its values are still right, and the last check reports
# how many bytes a rank keeps. Run the cell with the class again before the checks.

# %% [markdown] after="Count the bytes" tags=["notes"]
# Let the room count in all-gathers of the layer: two and a reduce-scatter make three, an all-reduce makes two. Here that is 2.1 MB against
# 1.4 MB. Neither depends on the batch, which is 4 here.

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# How much more traffic is this than plain data parallelism?

# %% [markdown] tags=["fragment"]
# Half as much again: two all-gathers and a reduce-scatter are three halves of an all-reduce.

# %% [markdown] after="Draw the memory" tags=["notes"]
# The upper bar is measured in the process, so expect about an eighth of 1.6 MB, and not exactly that. Adam's state is not in either bar:
# unsharded it is as much again as parameters and gradients together. Part 09 shards it.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: kept, all 12 weights are whole when forward ends; dropped, it is one whole weight and 12 shards, on 8 ranks 2.5 weights together. 2: a
# second whole weight at the same time; in return the exchange can hide behind the computation.
