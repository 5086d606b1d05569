# %% [markdown] after="# 28 A GPT on every axis" tags=["notes"]
# Train one grid live: it takes half a minute. The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on
# the way, each with its answer on the next key.

# %% [markdown] after="Draw the grid" tags=["slide"]
# ## A question for the room
#
# Eight ranks, two cores. Which grid will be the fastest here, and which on eight GPUs?

# %% [markdown] tags=["fragment"]
# Here, the one that sends and waits least: data parallel. On GPUs, the one whose parts fit into memory, with tp on the fastest links.

# %% [markdown] after="Draw the losses" tags=["slide"]
# ## A question for the room
#
# Six programs that share out the work in six ways: why is it one line?

# %% [markdown] tags=["fragment"]
# The weights are drawn before they are cut, the texts chosen before they are shared out, and every sum is the same but for its order.

# %% [markdown] after="Draw the bytes" tags=["slide-50"]
# ## A question for the room
#
# Which part of the bytes would not grow with more texts in a step?

# %% [markdown] tags=["fragment"]
# dp: gradients are as large as the weights. tp and pp send activations.
