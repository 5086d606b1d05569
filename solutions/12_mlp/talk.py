# %% [markdown] after="# 12 A perceptron with a framework" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="A gradient" tags=["notes"]
# Ask why there is a `sum()`: `backward` starts from a single number. Each $w_i$ is in one term only, so one call gives all 41 derivatives,
# and we may draw them as a curve.

# %% [markdown] after="Draw the gradient" tags=["notes"]
# The two curves lie on each other. Point at the ends: where tanh is flat, almost no gradient comes through. That is what happens to a unit
# whose weights have become too large.

# %% [markdown] after="Draw the gradient" tags=["slide"]
# ## A question for the room
#
# What does backward of tanh have to remember from forward?

# %% [markdown] tags=["fragment"]
# Its output y, for the derivative 1 - y². Not its input.

# %% [markdown] after="A `Module` is a function with parameters, such as `Linear(inputs, outputs, bias, random)`, or is made of other modules, which are its" tags=["notes"]
# Do not read it out; come back when a name is needed. Say two things: layers in a dict are not found, so nobody trains them; and whoever
# computes with `t.data` in between has cut the way back.

# %% [markdown] after="## Your turn: the network" tags=["notes"]
# Ask how many tanh there are with n weights: n - 1. With one after the last weight, all logits would be between -1 and 1, and no class
# could get a probability near one.

# %% [markdown] after="Exercise: MLP" tags=["notes"]
# Point at `self.layers[:-1]`, which leaves out the last tanh, and at the list, in which `parameters()` looks. All layers draw from the same
# generator, one after the other, so the same seed gives the same model; part 13 relies on that.

# %% [markdown] after="Exercise: evaluate" tags=["notes"]
# Ask why the loss is multiplied by `len(y)`: with 10 samples in batches of 4, 4 and 2, a mean of means counts a sample of the last batch
# twice as much as the others. Without `no_grad`, forward keeps everything for a backward that never comes.

# %% [markdown] after="## Your turn: training" tags=["notes"]
# Ask how many steps there are: epochs times `len(loader)`. The first has number 0, so the last one's number is one less, and that is what
# to divide by. The usual slips are a rate that changes once an epoch, and a last step that does not quite reach 0.3.

# %% [markdown] after="Exercise: train" tags=["notes"]
# The order is what matters: forget, forward, backward, step. `len(losses)` serves as the number of the step. The loss is that of the batch
# before its step, so nothing is computed twice.

# %% [markdown] after="Exercise: train" tags=["slide"]
# ## A question for the room
#
# What happens if nobody calls zero_grad?

# %% [markdown] tags=["fragment"]
# Gradients add up: each step uses the sum of all gradients so far.

# %% [markdown] after="Check" tags=["notes"]
# The check goes the same way by hand in NumPy and compares each gradient. Two wrong answers it knows by name: a tanh after the last layer,
# and no tanh at all.

# %% [markdown] after="Train the perceptron" tags=["notes"]
# While it runs, let the room count the steps: 8,000 samples in batches of 64 are 125 an epoch, 625 in all. Guessing is right once in 32
# times; in the end the test accuracy is about 0.97.

# %% [markdown] after="Draw the loss" tags=["notes"]
# The curve is ragged because each value is the loss of another batch of 64. At the end it is about 0.07, while the test loss is about 0.21:
# the difference is what was learned by heart.

# %% [markdown] after="Draw the loss" tags=["slide-50"]
# ## A question for the room
#
# 32 classes, and a model that knows nothing. What is the loss?

# %% [markdown] tags=["fragment"]
# ln 32 = 3.47, if all classes get the same probability. Random logits do a little worse.

# %% [markdown] after="Stop the rank" tags=["notes"]
# Question 1: three outputs of 64 x 256 float32 numbers, 192 KiB, beside 1.6 MB of weights and as much again of gradients. Question 2: the
# last weight's first. If you go on to part 14, leave this answer on the board.
