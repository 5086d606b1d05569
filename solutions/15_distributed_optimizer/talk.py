# %% [markdown] after="# 15 A distributed optimizer, and ResNet-9" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Equal and unequal parts" tags=["slide"]
# ## A question for the room
#
# One rank has one batch more than the others. What happens?

# %% [markdown] tags=["fragment"]
# It waits in an exchange to which nobody comes: a deadlock, in the last step of the epoch.

# %% [markdown] after="Exercise: DistributedOptimizer" tags=["slide"]
# ## A question for the room
#
# A wrapper of the model, or of the optimizer: when does each exchange?

# %% [markdown] tags=["fragment"]
# The model's during backward, as gradients come. The optimizer's in step, when all are there: simpler, and nothing is hidden.

# %% [markdown] after="Draw the loss" tags=["slide-50"]
# ## A question for the room
#
# Which lines change for GPUs?

# %% [markdown] tags=["fragment"]
# Arrays are CuPy's, and `init(backend="nccl")`. The rest stays.
