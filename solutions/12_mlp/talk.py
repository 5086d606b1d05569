# %% [markdown] after="# 12 A perceptron with a framework" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="A gradient" tags=["notes"]
# Ask why there is a `sum()`: `backward` starts from a single number. Each $w_i$ appears in only one term, so one call gives all 41
# derivatives, and we can draw them as a curve.

# %% [markdown] after="Draw the gradient" tags=["notes"]
# The two curves lie on top of each other. Point at the ends: where tanh is flat, almost no gradient comes through. That is what happens to
# a unit whose weights have become too large.

# %% [markdown] after="Draw the gradient" tags=["slide"]
# ## A question for the room
#
# What does the backward pass of tanh have to remember from the forward pass?

# %% [markdown] tags=["fragment"]
# Its output y, for the derivative 1 - y². Not its input.

# %% [markdown] after="A `Module` is a function with parameters. It may be a single layer such as `Linear(inputs, outputs, bias, random)`, or be built from other" tags=["notes"]
# Do not read this out; come back to it when a name is needed. Say two things: layers in a dict are not found, so they are never trained;
# and if you compute with `t.data` along the way, the gradient cannot get back past that point.

# %% [markdown] after="## Your turn: the network" tags=["notes"]
# Ask how often tanh is applied with n weights: n - 1. With one after the last weight as well, all logits would be between -1 and 1, and no
# class could get a probability close to one.

# %% [markdown] after="Exercise: MLP" tags=["notes"]
# Point at `self.layers[:-1]`, which leaves out the last tanh, and at the list, which is where `parameters()` looks. All layers draw from
# the same generator, one after the other, so the same seed gives the same model; part 13 relies on that.

# %% [markdown] after="Exercise: evaluate" tags=["notes"]
# Ask why the loss is multiplied by `len(y)`: with 10 samples in batches of 4, 4 and 2, a mean of means counts a sample in the last batch
# twice as much as the others. Without `no_grad`, the forward pass keeps everything for a backward pass that never comes.

# %% [markdown] after="## Your turn: training" tags=["notes"]
# Ask how many steps there are: epochs times `len(loader)`. The steps are numbered from 0, so the last step's number is one less than that,
# and this is what to divide by. The usual slips are a rate that changes only once per epoch, and a last step that does not quite reach 0.3.

# %% [markdown] after="Exercise: train" tags=["notes"]
# The order is what matters: clear, forward, backward, step. `len(losses)` doubles as the step number. The loss is the batch's loss before
# the step, so nothing is computed twice.

# %% [markdown] after="Exercise: train" tags=["slide"]
# ## A question for the room
#
# What happens if nobody calls zero_grad?

# %% [markdown] tags=["fragment"]
# The gradients add up: each step uses the sum of all gradients so far.

# %% [markdown] after="Check" tags=["notes"]
# The check does the same computation by hand in NumPy and compares each gradient. It recognizes two wrong answers: a tanh after the last
# layer, and no tanh at all.

# %% [markdown] after="Train the perceptron" tags=["notes"]
# While it runs, let the room count the steps: 8,000 samples in batches of 64 make 125 per epoch, 625 in all. A guess is right one time in
# 32; by the end, the test accuracy is about 0.97.

# %% [markdown] after="Draw the loss" tags=["notes"]
# The curve is ragged because each value is the loss of a different batch of 64. At the end it is about 0.07, while the test loss is about
# 0.21: the difference is what the model has memorized.

# %% [markdown] after="Draw the loss" tags=["slide-50"]
# ## A question for the room
#
# There are 32 classes, and the model knows nothing yet. What is the loss?

# %% [markdown] tags=["fragment"]
# ln 32 = 3.47, if all classes get the same probability. Random logits do slightly worse.

# %% [markdown] after="Stop the rank" tags=["notes"]
# Question 1: three outputs of 64 x 256 float32 numbers, 192 KiB, next to 1.6 MB of weights and as much again for the gradients. Question 2:
# the gradient of the last weight comes first. If you go on to part 14, leave this answer on the board.
