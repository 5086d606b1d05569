# %% [markdown] after="# 16 A training step, simulated" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Run it on four ranks" tags=["slide"]
# ## A question for the room
#
# One of the ranks is ten percent slower. How long does the step take?

# %% [markdown] tags=["fragment"]
# As long as the slow one: all wait for it in the all-reduce.

# %% [markdown] after="Draw the memory" tags=["slide"]
# ## A question for the room
#
# What is the largest part of this memory: weights, gradients, Adam's state or activations?

# %% [markdown] tags=["fragment"]
# Look at the picture: it depends on the micro-batch. Weights, gradients and Adam's state do not.

# %% [markdown] after="Draw memory by size" tags=["slide-50"]
# ## A question for the room
#
# Twice the micro-batch: what happens to time, and what to memory?

# %% [markdown] tags=["fragment"]
# The device is better used, up to a point. The activations take twice the memory.
