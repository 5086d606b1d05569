# %% [markdown] after="# 07 The gradient of the weights" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="The ranks of a **dp group** (a column of the grid) hold the same part of the model, and each works on its own samples. Each rank computes" tags=["notes"]
# Name the groups in the picture on the first slide: 0 with 2, and 1 with 3. Averaging over all four would mix the gradients of different
# weights, and where the shapes happen to be equal, no error would tell you.

# %% [markdown] after="Draw the line of this part" tags=["notes"]
# Forward does nothing: each rank already has the weights. Ask where this line stands in part 05's table: replicated to replicated, for
# different work. Tensor parallelism uses the same line for the input of a block (part 21), there with a sum and not a mean.

# %% [markdown] after="One sample on each rank" tags=["notes"]
# Have the room work out the mean before you draw it: the gradients add up to (-4, -8), so the mean is (-1, -2). `of_all` is only there for
# comparison; in real training no rank has all samples.

# %% [markdown] after="Draw the gradients" tags=["notes"]
# Nothing has been sent yet; the right half is where we want to get to. Point out rank 1: the first number of its own gradient is 0, because
# its sample agrees with `w` there, and yet it has to take the same step as the others.

# %% [markdown] after="Draw the gradients" tags=["slide"]
# ## A question for the room
#
# Sum or mean: which of them makes four ranks with 16 samples each give the same result as one rank with 64?

# %% [markdown] tags=["fragment"]
# The mean, if the loss is the mean over a rank's samples, and all ranks have the same number of samples.

# %% [markdown] after="## Your turn" tags=["notes"]
# float64 sneaks in through `np.empty` or `np.zeros` without a dtype. Dividing a float32 array by a Python integer keeps float32, so the
# division is harmless. The divisor is the size of the group, not the total number of ranks.

# %% [markdown] after="Exercise: collect_weight_grad" tags=["notes"]
# The bias is what people forget. Ask whether both could go into one exchange: yes, if they have the same dtype, and that is the idea behind
# the buckets of part 14.

# %% [markdown] after="Check" tags=["notes"]
# The second grid is the one to watch: with mp_size 2 and dp_size 2, a function that uses `comm` instead of `dp_comm` averages over all four
# ranks. The check names this mistake.

# %% [markdown] after="Count the bytes" tags=["notes"]
# 1.22 MB versus 0.41 MB, a factor of three: half the parameters on each rank, and a ring factor of 1 instead of 1.5. Ask what doubling the
# batch would change: nothing.

# %% [markdown] after="Count the bytes" tags=["slide"]
# ## A question for the room
#
# A weight of 784 by 256 in float32, on 4 ranks: how much does each rank send?

# %% [markdown] tags=["fragment"]
# 803 kB times 1.5, the ring's factor: 1.2 MB in every step.

# %% [markdown] after="Draw the mean" tags=["notes"]
# The right half looks the same as before, but now the ranks have really exchanged it. All ranks take the same step from the same weights,
# so the copies of the model stay equal; that is why one exchange per step is enough.

# %% [markdown] after="Draw the mean" tags=["slide-50"]
# ## A question for the room
#
# Do we have to wait for the end of the backward pass before we start the exchange?

# %% [markdown] tags=["fragment"]
# No: a layer's gradient is final as soon as the backward pass is done with that layer. Part 14 makes use of this.

# %% [markdown] after="Draw the memory" tags=["notes"]
# From 0.8 to 1.6 MB, for a single weight. Reducing in place would avoid it, but the exercise asks you not to modify the arguments. All
# ranks now hold the same mean, and that waste is where part 08 begins.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: the sums of the gradients together with the number of samples; then divide one total by the other. 2: start exchanging the gradient of
# fc2 and compute the backward pass of fc1 in the meantime.
