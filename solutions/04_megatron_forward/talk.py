# %% [markdown] after="# 04 Megatron model parallelism, forward" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the weight of fc2" tags=["notes"]
# Hold it against the picture on the first slide: the three columns of rank 1 there and its three rows here are the same hidden units.
# Everybody knows this sum as block multiplication; what is new is to read it as a plan of who computes what.

# %% [markdown] after="Draw the weight of fc2" tags=["slide"]
# ## A question for the room
#
# fc1 is split by columns, fc2 by rows. Which exchange is left between them?

# %% [markdown] tags=["fragment"]
# None: what a rank has of the hidden layer is just what its rows of fc2 need.

# %% [markdown] after="Multiply the parts" tags=["notes"]
# Ask for the four products first: (1, 0), (0, 2), (3, 3), (8, 0). Many expect that each rank finishes some of the outputs. Instead every
# rank has a share in both.

# %% [markdown] after="Draw the summands" tags=["notes"]
# The right half is `x @ w`, computed whole on every rank for comparison; nothing has been sent yet. Add up a column, 1 + 0 + 3 + 8 = 12,
# and ask which collective leads from left to right.

# %% [markdown] after="Draw the summands" tags=["slide"]
# ## A question for the room
#
# Why may each rank apply the activation function by itself?

# %% [markdown] tags=["fragment"]
# It works on every number by itself, and a rank has whole numbers of the hidden layer. Of summands it would be wrong: f(a + b) is not
# f(a) + f(b).

# %% [markdown] after="Exercise: megatron_collect_forward_input" tags=["notes"]
# Wait a moment before you show it: few dare to return `x`. After a gather, `x` has more columns than this rank has rows of the weight, and
# the product fails. A gather of which only the own part is used gives the right values, and loses points for its traffic.

# %% [markdown] after="Exercise: megatron_collect_forward_output" tags=["notes"]
# It is a sum and not a mean: dividing by the number of ranks belongs to data parallel gradients, in part 07. Putting the results side by
# side, as in part 03, is the other habit to look out for.

# %% [markdown] after="Check" tags=["notes"]
# Gathering all summands and adding them up locally gives the right values and too many bytes: on four ranks twice those of an all-reduce.
# On two ranks both send equally much, so only the check with four finds it.

# %% [markdown] after="Draw the output" tags=["notes"]
# Ask for the result first: 0 + 1 + 2 + 3 = 6 and 40, on every rank. Someone who takes the mean gets 1.5 and 10.

# %% [markdown] after="Count the bytes" tags=["notes"]
# About a factor of eleven for both sizes, because 256 hidden units stand against 12 outputs. Say what it would be in a transformer, whose
# hidden layer is four times as wide as its output: five to two, which is still worth it.

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# When does the naive way send less than this one?

# %% [markdown] tags=["fragment"]
# When there are fewer hidden units than outputs. The naive way gathers both, each once; the all-reduce moves the output twice.

# %% [markdown] after="Draw the memory" tags=["notes"]
# 61 kB, 31 kB, 15 kB. This array is kept for backward, so the saving lasts through the step and not only for a moment. What is whole on
# every rank in both styles is the output of fc2.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: it is added mp_size times; add it once, after the all-reduce. 2: it needs the maximum and the sum over all hidden units, so two small
# all-reduces. Attention avoids this: its softmax stays inside a head, and it is the heads that are split.
