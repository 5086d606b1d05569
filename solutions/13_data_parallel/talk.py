# %% [markdown] after="# 13 Data parallel in three lines" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the gradients" tags=["slide"]
# ## A question for the room
#
# Four ranks draw four models, and then average their gradients in each step. Do the models become equal?

# %% [markdown] tags=["fragment"]
# No: all take the same step, so their differences stay. Hence the broadcast at the start.

# %% [markdown] after="Exercise: rank_batches" tags=["slide"]
# ## A question for the room
#
# Each rank shuffles the data with a seed of its own. What goes wrong?

# %% [markdown] tags=["fragment"]
# Some samples come twice in an epoch, and some never.

# %% [markdown] after="Draw how far apart" tags=["slide-50"]
# ## A question for the room
#
# 64 samples on one process, or 16 on each of four: is the learning rate the same?

# %% [markdown] tags=["fragment"]
# Yes: the mean over the ranks is the mean over 64 samples.
