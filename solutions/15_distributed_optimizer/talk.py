# %% [markdown] after="# 15 A distributed optimizer, and ResNet-9" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="In parts 13 and 14 a wrapper around the *model* averaged the gradients. Here the *optimizer* is wrapped instead, which is how Horovod does" tags=["notes"]
# Point at the factor $N_r / N$: it is the only thing to remember. The mean of means is what most people write, and it is right only for
# parts of the same size. Ask for the answer to the last question before you run the cell.

# %% [markdown] after="Equal and unequal parts" tags=["notes"]
# Ask for the three results first: rounding, wrong, rounding. The plain mean of unequal parts is off by more than half of the largest
# gradient, and no error message says so. Training would still seem to work.

# %% [markdown] after="Equal and unequal parts" tags=["slide"]
# ## A question for the room
#
# One rank has one batch more than the others. What happens?

# %% [markdown] tags=["fragment"]
# It waits in an exchange to which nobody comes: a deadlock, in the last step of the epoch.

# %% [markdown] after="Four parts" tags=["notes"]
# Let the room do the sums: 12.8, 9.6, 6.4 and 3.2, rounded down to 12, 9, 6 and 3, so two samples are left. Ask what goes wrong with a seed
# of its own on each rank: parts overlap, and some samples are in no part.

# %% [markdown] after="Draw the parts" tags=["notes"]
# The squares of a rank are scattered because the samples are shuffled before the cut. No square is coloured on two ranks; the two that are
# grey on all four are the ones left over.

# %% [markdown] after="Exercise: partition_dataset" tags=["notes"]
# Point at `batch_size // size`: the argument is the batch of all ranks together. Without the division the code runs, with steps that take
# four times as many samples. Two shuffles are needed: one before the cut, and one in each epoch.

# %% [markdown] after="Exercise: broadcast_parameters" tags=["notes"]
# Ask what is not broadcast: the running means of the batch normalisation are no parameters. Here that does no harm, as they start as zeros
# and ones everywhere. A `root=0` typed out of habit is what the check finds, by taking rank 2.

# %% [markdown] after="## Your turn: step together" tags=["notes"]
# Ask what `step` has to do with a `grad` that is None. Skip it: zeros instead would make Adam move the parameter by its old moments. Then
# ask in which order the mean and the step come.

# %% [markdown] after="Exercise: DistributedOptimizer" tags=["notes"]
# The contract says that a gradient is None on all ranks or on no rank; that is why the all-reduces still find their partners. Averaging the
# parameters after the step looks the same with SGD, and is wrong with Adam.

# %% [markdown] after="Exercise: DistributedOptimizer" tags=["slide"]
# ## A question for the room
#
# A wrapper of the model, or of the optimizer: when does each exchange?

# %% [markdown] tags=["fragment"]
# The model's during backward, as gradients come. The optimizer's in step, when all are there: simpler, and nothing is hidden.

# %% [markdown] after="Check" tags=["notes"]
# The partition is checked on 40 samples in batches of 8, the broadcast from rank 2, and the steps beside one process with the whole batch.
# The hidden tests take Adam, too, which finds a parameter that was treated as if its gradient were zero.

# %% [markdown] after="## ResNet-9" tags=["notes"]
# Keep this slide short: start the next cell, and talk while it runs. The name counts eight convolutions and one linear layer. Width 8
# instead of the usual 64 is what lets a laptop train it.

# %% [markdown] after="Train" tags=["notes"]
# Point at the three numbered lines: all else is a loop for one process. Each rank draws another model, so without line 2 they would never
# agree. Rank 0 may compute the accuracy alone because it calls no collective there; the others wait at their next step.

# %% [markdown] after="Draw the loss" tags=["notes"]
# Ask whether different losses mean different models. They do not: the model is the same on all ranks, and each value is for another 16
# images. Two of the four ranks are drawn, to keep it readable.

# %% [markdown] after="Draw the loss" tags=["slide-50"]
# ## A question for the room
#
# Which lines change for GPUs?

# %% [markdown] tags=["fragment"]
# Arrays are CuPy's, and `init(backend="nccl")`. The rest stays.

# %% [markdown] after="Look for GPUs" tags=["notes"]
# On most laptops the cell only says what is missing, and that is fine. What to take home: the code asks for a communicator and never for
# MPI by name. NCCL needs one GPU for each rank.

# %% [markdown] after="Stop the ranks" tags=["notes"]
# Question 1: not quite, since means over 16 samples are not those over 64; a synchronised batch normalisation exchanges them in forward.
# Question 2: when the exchange takes a notable part of backward, with a large model or a slow network.
