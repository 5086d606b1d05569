# %% [markdown] after="# 25 A pipeline on real ranks" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key. The last two measurements take a few seconds.

# %% [markdown] after="Draw the clock" tags=["slide"]
# ## A question for the room
#
# Each rank waits three quarters of the time. What would help?

# %% [markdown] tags=["fragment"]
# More to do: while rank 1 has the first micro-batch, rank 0 can begin with the second.

# %% [markdown] after="Check GPipe" tags=["slide-50"]
# ## A question for the room
#
# Where is the loss divided by the number of micro-batches, and why only there?

# %% [markdown] tags=["fragment"]
# On the last rank, before the way back. All gradients below are linear in that one: they are divided with it.

# %% [markdown] after="Time both orders, and draw them" tags=["slide-50"]
# ## A question for the room
#
# GPipe and 1F1B take the same time. So why does nobody use GPipe?

# %% [markdown] tags=["fragment"]
# For the memory: bubbles shrink with more micro-batches, and in GPipe each of them costs activations.
