# %% [markdown] after="# 07 The gradient of the weights" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="The ranks of a **dp group** (a column of the grid) hold the same part of the model, and each looks at its own samples. Each finds the" tags=["notes"]
# Name the groups in the picture on the first slide: 0 with 2, and 1 with 3. Averaging over all four would mix the gradients of different
# weights, and where their shapes are equal no error would say so.

# %% [markdown] after="One sample on each rank" tags=["notes"]
# Have the mean worked out before you draw: the gradients add up to (-4, -8), so it is (-1, -2). `of_all` is there for comparison only; in
# real training no rank has all samples.

# %% [markdown] after="Draw the gradients" tags=["notes"]
# Nothing has been sent yet; the right half is where we want to go. Point at rank 1: the first number of its own gradient is 0, since its
# sample agrees with `w` there, and still it has to take the same step as the others.

# %% [markdown] after="Draw the gradients" tags=["slide"]
# ## A question for the room
#
# Sum or mean: what makes four ranks with 16 samples each the same as one with 64?

# %% [markdown] tags=["fragment"]
# The mean, if the loss is the mean over a rank's samples, and all have the same number of them.

# %% [markdown] after="## Your turn" tags=["notes"]
# Where float64 gets in: `np.empty` or `np.zeros` without a dtype. Dividing a float32 array by a Python integer keeps float32, so that line
# is harmless. The divisor is the size of the group, not the number of all ranks.

# %% [markdown] after="Exercise: collect_weight_grad" tags=["notes"]
# The bias is what gets forgotten. Ask whether both could go in one exchange: yes, if they have one dtype, and that is the idea behind the
# buckets of part 14.

# %% [markdown] after="Check" tags=["notes"]
# The second grid is the one to watch: with mp_size 2 and dp_size 2, a function that takes `comm` in place of `dp_comm` averages over all
# four ranks. The check names this mistake.

# %% [markdown] after="Count the bytes" tags=["notes"]
# 1.22 MB against 0.41 MB, a factor of three: half the parameters on each rank, and a ring's factor of 1 instead of 1.5. Ask what twice the
# batch would change: nothing.

# %% [markdown] after="Count the bytes" tags=["slide"]
# ## A question for the room
#
# A weight of 784 by 256 in float32, on 4 ranks: how much does each one send?

# %% [markdown] tags=["fragment"]
# 803 kB times 1.5, the ring's factor: 1.2 MB, in every step.

# %% [markdown] after="Draw the mean" tags=["notes"]
# The right half looks as before, but now it has been sent. All ranks take the same step from the same weights, so the copies of the model
# stay equal; this is why one exchange a step is enough.

# %% [markdown] after="Draw the mean" tags=["slide-50"]
# ## A question for the room
#
# Must we wait for the end of backward before we begin?

# %% [markdown] tags=["fragment"]
# No: a layer's gradient is final as soon as backward has passed it. Part 14 makes use of that.

# %% [markdown] after="Draw the memory" tags=["notes"]
# From 0.8 to 1.6 MB, for one weight. Reducing in place would avoid it; the exercise asks you to leave the arguments as they are. All ranks
# now hold the same mean, and part 08 begins with that waste.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: the sums of the gradients, and with them the number of samples; divide the one total by the other. 2: begin to exchange the gradient of
# fc2, and compute backward of fc1 meanwhile.
