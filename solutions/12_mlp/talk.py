# %% [markdown] after="# 12 A perceptron with a framework" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the gradient" tags=["slide"]
# ## A question for the room
#
# What does backward of tanh have to remember from forward?

# %% [markdown] tags=["fragment"]
# Its output y, for the derivative 1 - y². Not its input.

# %% [markdown] after="Exercise: train" tags=["slide"]
# ## A question for the room
#
# What happens if nobody calls zero_grad?

# %% [markdown] tags=["fragment"]
# Gradients add up: each step uses the sum of all gradients so far.

# %% [markdown] after="Draw the loss" tags=["slide-50"]
# ## A question for the room
#
# 32 classes, and a model that knows nothing. What is the loss?

# %% [markdown] tags=["fragment"]
# ln 32 = 3.47, if all classes get the same probability. Random logits do a little worse.
