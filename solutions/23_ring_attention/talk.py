# %% [markdown] after="# 23 Ring attention" tags=["notes"]
# The way back is the heart of this part: what travels is not finished. The grey lines are folded cells: Shift-Enter runs them. Three
# questions for the room come on the way, each with its answer on the next key.

# %% [markdown] after="Draw who computes what" tags=["slide"]
# ## A question for the room
#
# All ranks have as many positions. Why is their work not the same?

# %% [markdown] tags=["fragment"]
# A late query sees many keys, an early one few. In plain order, the last of four ranks computes 7 of 16 parts, the first one.

# %% [markdown] after="Draw the ring" tags=["slide"]
# ## A question for the room
#
# After the last step, K and V are one hop short of home. Does anybody have to send them on?

# %% [markdown] tags=["fragment"]
# No: their owner still has them. But dK and dV, which travel with them in backward, must go that last hop.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# What would an all-gather of K and V cost, in bytes that each rank sends?

# %% [markdown] tags=["fragment"]
# The same as the ring. It is memory that it costs, and time: nobody computes until the last piece is there.
