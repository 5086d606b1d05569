# %% [markdown] after="# 19 One forward, one backward" tags=["notes"]
# Play the timeline, stop it after the first backward of the last rank, and ask what each rank may do next. The grey lines are folded
# cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next key.

# %% [markdown] after="Three micro-batches go forward" tags=["slide"]
# ## A question for the room
#
# 4 ranks and 8 micro-batches. How many are in flight on rank 0 at most?

# %% [markdown] tags=["fragment"]
# Four, one for each rank. With all forward first (GPipe) it would be eight.

# %% [markdown] after="Draw the ideal" tags=["slide"]
# ## A question for the room
#
# Which part of the time are the ranks idle, if messages cost nothing?

# %% [markdown] tags=["fragment"]
# $(p-1)/(m+p-1) = 3/11$, or 27%: the same as GPipe's. 1F1B saves memory, not time.

# %% [markdown] after="Draw the schedule" tags=["slide-50"]
# ## A question for the room
#
# What would more micro-batches change?

# %% [markdown] tags=["fragment"]
# The bubbles shrink with 1/m. But smaller micro-batches use the device less well, and send more messages.
