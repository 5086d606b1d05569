# %% [markdown] after="# 00 Warm-up: four collectives" tags=["notes"]
# The first deadlock is on purpose: let the room say what will happen before you run it. The grey lines are folded cells: Shift-Enter runs
# them. Three questions for the room come on the way, each with its answer on the next key.

# %% [markdown] after="Run the all-reduce" tags=["slide"]
# ## A question for the room
#
# After an all-reduce with the sum over eight ranks, which rank has the result?

# %% [markdown] tags=["fragment"]
# All of them: that is what the *all* stands for. A plain reduce gives it to one.

# %% [markdown] after="Forget a rank" tags=["slide"]
# ## A question for the room
#
# Seven ranks call the all-reduce, and one does not. What happens on a cluster with a thousand ranks?

# %% [markdown] tags=["fragment"]
# The others wait, without a word, until somebody looks or the job's time is over. Here the ranks tell each other where they are, so it
# takes a second.

# %% [markdown] after="Draw a ring" tags=["slide-50"]
# ## A question for the room
#
# With 800 ranks in place of 8, how much more does each one send?

# %% [markdown] tags=["fragment"]
# Hardly anything: $2\frac{n-1}{n}$ goes from 1.75 arrays to 1.9975. But there are 1,598 steps in place of 14, and each takes its time.
