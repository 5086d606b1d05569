# %% [markdown] after="# 05 Naive model parallelism, backward" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the gradient of the output" tags=["slide"]
# ## A question for the room
#
# Forward was an all-gather. Which exchange is its backward?

# %% [markdown] tags=["fragment"]
# A reduce-scatter. Everybody used a rank's part, so its gradient is a sum over all ranks; and a rank needs only its own part of that.

# %% [markdown] after="A column is not one block" tags=["slide"]
# ## A question for the room
#
# Which numbers does Reduce_scatter give to rank 1?

# %% [markdown] tags=["fragment"]
# The second block of the flat array. Those are rows, not columns, so they must be put in order before.

# %% [markdown] after="Draw the gradient of the input" tags=["slide-50"]
# ## A question for the room
#
# In backward of the output there is no exchange at all. Why?

# %% [markdown] tags=["fragment"]
# Every rank has the whole gradient of the output already. It takes its columns.
