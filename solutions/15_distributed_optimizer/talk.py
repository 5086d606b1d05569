# %% [markdown] after="# 15 A distributed optimizer, and ResNet-9" tags=["notes"]
# The gray lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="In parts 13 and 14, a wrapper around the *model* averaged the gradients. Here we wrap the *optimizer* instead. That is Horovod's interface" tags=["notes"]
# Point at the factor $N_r / N$: it is the only thing to remember. Most people write the mean of means, and that is right only for parts of
# the same size. Ask for the answer to the last question before you run the cell.

# %% [markdown] after="Equal and unequal parts" tags=["notes"]
# Ask for the three results first: zero up to rounding, wrong, and zero up to rounding again. The plain mean of unequal parts is off by more
# than half of the largest gradient, and no error message tells you. Training would still seem to work.

# %% [markdown] after="Equal and unequal parts" tags=["slide"]
# ## A question for the room
#
# One rank has one batch more than the others. What happens?

# %% [markdown] tags=["fragment"]
# When training ends, it waits in a collective that nobody else joins: a deadlock. In earlier epochs, its extra step is averaged with the
# others' first step of the next epoch, and no error tells you.

# %% [markdown] after="Four parts" tags=["notes"]
# Let the room do the sums: 12.8, 9.6, 6.4 and 3.2, rounded down to 12, 9, 6 and 3, so two samples are left over. Ask what goes wrong if
# each rank has its own seed: parts overlap, and some samples are in no part.

# %% [markdown] after="Draw the parts" tags=["notes"]
# A rank's squares are scattered because the samples are shuffled before the cut. No square is colored on two ranks; the two that are grey
# on all four are the ones left over.

# %% [markdown] after="Exercise: partition_dataset" tags=["notes"]
# Point at `batch_size // size`: the argument is the batch of all ranks together. Without the division the code runs, but a step takes four
# times as many samples. Two shuffles are needed: one before the cut, and one in each epoch.

# %% [markdown] after="Exercise: broadcast_parameters" tags=["notes"]
# Ask what is not broadcast: the running means of batch normalization are not parameters. That does no harm here: the means start at zero
# and the variances at one, on every rank. The check uses rank 2, so it catches a `root=0` typed out of habit.

# %% [markdown] after="## Your turn: step together" tags=["notes"]
# Ask what `step` should do with a `grad` that is None. Skip it: given zeros instead, Adam would move the parameter because of its old
# moments. Then ask which comes first, the mean or the step.

# %% [markdown] after="Exercise: DistributedOptimizer" tags=["notes"]
# The docstring says that a gradient is None on all ranks or on none; that is why the all-reduces still match up. Averaging the parameters
# after the step gives the same result with SGD, and is wrong with Adam.

# %% [markdown] after="Exercise: DistributedOptimizer" tags=["slide"]
# ## A question for the room
#
# A wrapper around the model, or around the optimizer: when does each one communicate?

# %% [markdown] tags=["fragment"]
# The model wrapper during backward, as the gradients become ready; ours of the optimizer in `step`, when all of them are there. That is
# simpler, but none of the communication is hidden. Horovod's registers hooks, too, and only waits in `step`.

# %% [markdown] after="Check" tags=["notes"]
# The partition is checked on 40 samples in batches of 8, the broadcast from rank 2, and the steps against a single process with the whole
# batch. The hidden tests also use Adam, which exposes a parameter that was treated as if its gradient were zero.

# %% [markdown] after="## ResNet-9" tags=["notes"]
# Keep this slide short: start the next cell, and talk while it runs. The 9 in the name stands for eight convolutions and one linear layer.
# Width 8 instead of the usual 64 is what lets a laptop train it.

# %% [markdown] after="Train" tags=["notes"]
# Point at the three numbered lines: everything else is a loop for a single process. Each rank draws a different model, so without line 2
# they would never agree. Rank 0 can compute the accuracy alone because it calls no collective there; the others wait at their next step.

# %% [markdown] after="Draw the loss" tags=["notes"]
# Ask whether different losses mean different models. They do not: the model is the same on all ranks, and each value is for a different
# set of 16 images. Only two of the four ranks are drawn, to keep it readable.

# %% [markdown] after="Draw the loss" tags=["slide-50"]
# ## A question for the room
#
# Which lines change for GPUs?

# %% [markdown] tags=["fragment"]
# The arrays are CuPy arrays, and you call `init(backend="nccl")`. The rest stays the same.

# %% [markdown] after="Look for GPUs" tags=["notes"]
# On most laptops the cell only says what is missing, and that is fine. The takeaway: the code asks for a communicator and never
# for MPI by name. NCCL needs one GPU per rank.

# %% [markdown] after="Stop the ranks" tags=["notes"]
# Question 1: not quite, since the means over 16 samples are not the means over all 64; synchronized batch normalization exchanges them in
# forward. Question 2: when communication takes long compared with backward, as with a large model or a slow network. The optimizer knows the
# parameters, so it can register hooks on them, start the all-reduces there and wait in `step`: that is Horovod.
