# %% [markdown] after="# 08 A fully sharded layer" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="In data parallel training every rank holds the whole model, its gradients and the optimizer's state, all of them the same. **ZeRO**" tags=["slide"]
# ## A question for the room
#
# A model of a billion parameters, float32 with Adam, on 8 ranks. What does each hold, without and with stage 3?

# %% [markdown] tags=["fragment"]
# 16 bytes a parameter: 16 GB without, 2 GB with.

# %% [markdown] after="A view and a copy" tags=["slide"]
# ## A question for the room
#
# Why gather the weight a second time in backward?

# %% [markdown] tags=["fragment"]
# Because it was dropped. Kept, all layers would be there whole when forward ends.

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# How much more traffic is this than plain data parallelism?

# %% [markdown] tags=["fragment"]
# Half as much again: two all-gathers and a reduce-scatter are three halves of an all-reduce.
