# %% [markdown] after="# 04 Megatron model parallelism, forward" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="Draw the weight of fc2" tags=["notes"]
# Compare it with the picture on the first slide: the three columns of rank 1 there and its three rows here are the same hidden units.
# Everybody knows this sum as block matrix multiplication; what is new is reading it as a plan for who computes what.

# %% [markdown] after="Draw the weight of fc2" tags=["slide"]
# ## A question for the room
#
# fc1 is split by columns, fc2 by rows. What still has to be exchanged between them?

# %% [markdown] tags=["fragment"]
# Nothing: a rank's part of the hidden layer is exactly what its rows of fc2 need.

# %% [markdown] after="Multiply the parts" tags=["notes"]
# Ask for the four products first: (1, 0), (0, 2), (3, 3), (8, 0). Many people expect each rank to finish some of the outputs. Instead,
# every rank contributes to both.

# %% [markdown] after="Draw the summands" tags=["notes"]
# The right half is `x @ w`, computed in full on every rank for comparison; nothing has been sent yet. Add up a column, 1 + 0 + 3 + 8 = 12,
# and ask which collective takes you from left to right.

# %% [markdown] after="Draw the lines of this part" tags=["notes"]
# Let the room fill in the question marks from the placements alone: what does a rank have, and what does it need? One of the two lines
# begins and ends with the same placement.

# %% [markdown] after="Draw the summands" tags=["slide"]
# ## A question for the room
#
# Why can each rank apply the activation function on its own?

# %% [markdown] tags=["fragment"]
# It works on each number separately, and a rank's hidden units are complete. On partial sums it would be wrong: f(a + b) is not f(a) +
# f(b).

# %% [markdown] after="Exercise: megatron_collect_forward_input" tags=["notes"]
# Wait a moment before you show it: few people dare to simply return `x`. It is the line sharded to sharded: nothing changes. After a
# gather, `x` has more columns than this rank has rows of the weight, and the product fails. A gather from which a rank uses only its own
# part gives the right values but loses points for its traffic.

# %% [markdown] after="Exercise: megatron_collect_forward_output" tags=["notes"]
# It is a sum, not a mean: dividing by the number of ranks belongs in data parallel training, in part 07. Putting the results side by side,
# as in part 03, is the other habit to look out for.

# %% [markdown] after="Check" tags=["notes"]
# The last check is the one that matters: with a real product in between, the two functions give the unsharded output. Gathering all
# partial outputs and adding them up locally gives the right values but sends too many bytes: on four ranks, twice as many as an all-reduce.
# On two ranks both send the same amount, so only the check with four ranks catches it.

# %% [markdown] after="Draw the output" tags=["notes"]
# Ask for the result first: 0 + 1 + 2 + 3 = 6 and 40, on every rank. Someone who takes the mean gets 1.5 and 10.

# %% [markdown] after="Count the bytes" tags=["notes"]
# A factor of eleven in the perceptron, because it has 256 hidden units and only 12 outputs. In a transformer, whose hidden layer is four
# times as wide as its output, it is two and a half: (4 + 1) / 2. That is the number to remember.

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# When does the naive way send less than this one?

# %% [markdown] tags=["fragment"]
# When there are fewer hidden units than outputs. The naive way gathers both, each of them once; the all-reduce moves the output twice.

# %% [markdown] after="Draw the memory" tags=["notes"]
# 61 kB, 31 kB, 15 kB. This array is kept for the backward pass, so the saving lasts through the whole step, not just for a moment. The
# output of fc2 is whole on every rank in both styles.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: it is added mp_size times; add it once, after the all-reduce. 2: a softmax needs the maximum and the sum over all hidden units, which
# takes two small all-reduces. Attention avoids this: its softmax stays within a head, and it is the heads that are split.
