# %% [markdown] after="# 06 Megatron model parallelism, backward" tags=["notes"]
# The point of this part is what is *not* sent. The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come
# on the way, each with its answer on the next key.

# %% [markdown] after="Draw what a rank computes" tags=["slide"]
# ## A question for the room
#
# Forward ended with an all-reduce. Which exchange does its backward need?

# %% [markdown] tags=["fragment"]
# None. The output is a sum with a factor of one for each summand, so each summand's gradient is that of the output.

# %% [markdown] after="Move one number" tags=["slide"]
# ## A question for the room
#
# Rank 2 changes one number of its summand by 0.1. By how much does the output change?

# %% [markdown] tags=["fragment"]
# By 0.1. That is the whole proof.

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# Then where is the exchange in backward?

# %% [markdown] tags=["fragment"]
# Before fc1: the gradient of its input is a sum over the ranks. Here fc1 is the first layer, and nobody needs it.
