# %% [markdown] after="# 21 A tensor parallel transformer block" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Name its kind" tags=["slide"]
# ## A question for the room
#
# Each rank goes on with the gradient that it has. What happens to the weights below?

# %% [markdown] tags=["fragment"]
# They are replicated, and get another gradient on each rank. After a step they are not the same any more, and no error says so.

# %% [markdown] after="Draw the two" tags=["slide-50"]
# ## A question for the room
#
# How many all-reduces does a block need in a step, forward and backward?

# %% [markdown] tags=["fragment"]
# Four: g in the attention and in the MLP on the way forward, and f in each on the way back.

# %% [markdown] after="Count the bytes" tags=["slide"]
# ## A question for the room
#
# Why may the labels' logits go along as one number?

# %% [markdown] tags=["fragment"]
# The loss is a mean over the tokens, and the mean needs only their sum. The largest logit and the sum of exponentials go into a logarithm, token
# by token: these must be known one by one.
