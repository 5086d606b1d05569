# %% [markdown] after="# 24 A mixture of experts" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key. The picture of the flights has a slider in a notebook.

# %% [markdown] after="Draw what the tokens want" tags=["slide"]
# ## A question for the room
#
# Expert 7 is wanted by eight tokens, and expert 3 by none. What does that cost, when all ranks wait for each other?

# %% [markdown] tags=["fragment"]
# The slowest rank sets the pace: all others wait for the one with expert 7. And an array for all that might come would have to be as large
# as all tokens. So each expert gets a limit, and what comes beyond it is dropped.

# %% [markdown] after="Draw the flights" tags=["slide"]
# ## A question for the room
#
# A token with a red frame has no slot. What does the layer make of it?

# %% [markdown] tags=["fragment"]
# Nothing: `combine` gives 0, and the layer adds its input to that. So it passes unchanged, by the residual connection.

# %% [markdown] after="Train without and with the balancing loss" tags=["slide-50"]
# ## A question for the room
#
# Data parallel training sums every gradient over the ranks. What would go wrong if somebody did so with the experts' gradients?

# %% [markdown] tags=["fragment"]
# The arrays have the same shape on all ranks, so no error is raised. But they are gradients of different experts, and each rank would add up
# what has nothing to do with each other.
