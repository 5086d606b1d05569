# %% [markdown] after="# 27 Checkpoints, and going on after a crash" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key. The killed run takes a few seconds.

# %% [markdown] after="Look at the parts" tags=["slide"]
# ## A question for the room
#
# With plain data parallel, all ranks have the same. Who writes what?

# %% [markdown] tags=["fragment"]
# Each rank a part of its own: then all disks and networks work at once, and no rank has to wait for one that writes it all.

# %% [markdown] after="Check save" tags=["slide-50"]
# ## A question for the room
#
# Why a Barrier before the index, and what could happen without one?

# %% [markdown] tags=["fragment"]
# The index would tell of a file that a slow rank has not written yet. If that rank ends now, the old checkpoint is lost, too.

# %% [markdown] after="Draw the losses" tags=["slide-50"]
# ## A question for the room
#
# Three ranks went on where four had been. Why does the loss not show it?

# %% [markdown] tags=["fragment"]
# A step takes the same twelve texts, whoever has them: the mean gradient is the same, but for rounding.
