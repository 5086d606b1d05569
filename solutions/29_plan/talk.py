# %% [markdown] after="# 29 Plan a run" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key. The map of all grids takes about five seconds.

# %% [markdown] after="Look at a step" tags=["slide"]
# ## A question for the room
#
# 7 billion parameters: how many bytes are that in training, before a single text has been read?

# %% [markdown] tags=["fragment"]
# 18 for each, 126 GB: weights in 16 bits, gradients in 32, and for Adam a copy and two moments, in 32 bits each.

# %% [markdown] after="Draw the roofline" tags=["slide-50"]
# ## A question for the room
#
# Twice as wide a model sends twice as much for each position. Why does it wait less all the same?

# %% [markdown] tags=["fragment"]
# Arithmetic grows with the square of the width, messages with the width.

# %% [markdown] after="Draw the map" tags=["slide"]
# ## A question for the room
#
# Why is the fastest grid neither in a corner nor at an edge?

# %% [markdown] tags=["fragment"]
# Each axis costs more, the longer it gets: tensor by its exchanges, pipeline by its bubbles, data by memory.
