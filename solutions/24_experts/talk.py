# %% [markdown] after="# 24 A mixture of experts" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer. In a notebook, the picture of the tokens' routes has a slider.

# %% [markdown] after="Draw what the tokens want" tags=["slide"]
# ## A question for the room
#
# Eight tokens want expert 7, and none wants expert 3. What does that cost when all ranks wait for each other?

# %% [markdown] tags=["fragment"]
# The slowest rank sets the pace: all others wait for the one with expert 7. And an array with room for whatever might arrive would have to
# hold all tokens. So each expert gets a limit, and anything beyond it is dropped.

# %% [markdown] after="Draw what kind the arrays are" tags=["notes"]
# Point at the one partial row, the router's gradient: it is the one that needs an all-reduce, as long as ep is all of dp. Clear up a common misunderstanding, that
# eight experts cost eight times the FLOP: with topk 1, a token passes through a single expert, so they hardly cost more than one.

# %% [markdown] after="The router's gradient is *partial*: each rank has the term from its own tokens, and an all-reduce adds them up. The experts' gradients" tags=["notes"]
# Collect predictions for rank 2: it gets 2, 12, 22, 32. The second question is worth a minute: a second all-to-all brings every part back
# to where it came from, because the exchange is a transpose.

# %% [markdown] after="A number for each rank" tags=["notes"]
# Type the room's answer into `prediction` before you run it; anything wrong gets a red frame. Read the left picture as a matrix whose rows
# are the senders: on the right it is transposed.

# %% [markdown] after="## Your turn: who goes where" tags=["notes"]
# Do one example: 8 tokens, one expert each, factor 1.25 and eight experts make 2 slots. Ask why each rank has its own slots: that makes all
# parts of the all-to-all equally large, and no rank has to know how many tokens the others send.

# %% [markdown] after="Exercise: route" tags=["notes"]
# Point at the loop: k is the outer index, so all first choices get their slots before any second ones. A softmax over only the chosen experts would
# make the gate 1 for topk 1, and the router would learn from nothing but the balancing loss. And when a choice is dropped, the remaining
# gates stay as they are.

# %% [markdown] after="## Your turn: there, and back" tags=["notes"]
# Read the shapes aloud, and say what the axis n means on each side of the arrow. In the last step it must move next to C, which takes a
# transpose before the reshape. Without it, all shapes still fit, and tokens go through the wrong experts.

# %% [markdown] after="Exercise: dispatch" tags=["notes"]
# `into_slots` is given: a table of who is where, in which -1 for a dropped token is the classic slip, as NumPy takes the last slot. Here the
# slip is the last line without the transpose. And a rank whose tokens all stay at home must still call the all-to-all, or the others wait.

# %% [markdown] after="Draw the tokens' routes" tags=["notes"]
# Go through the five frames and follow one color. Five tokens are dropped. Ask about expert 7: it has eight slots, eight tokens want it,
# and one of them is dropped all the same: rank 2 has three tokens for it, and two slots, so it sends two.

# %% [markdown] after="Draw the tokens' routes" tags=["slide"]
# ## A question for the room
#
# A crossed token has no slot. What does the layer do with it?

# %% [markdown] tags=["fragment"]
# Nothing: `combine` gives 0, and the layer adds its input to that. So the token passes through unchanged, thanks to the residual
# connection.

# %% [markdown] after="## Do the experts share the work?" tags=["notes"]
# The f come from counting, so they have no gradient; the router learns through P, weighted by f. If all shares are equal, the loss is 1.
# Say why it is needed: an expert that gets more tokens learns more, and is then wanted even more.

# %% [markdown] after="Train without and with the balancing loss" tags=["notes"]
# Before you run it, ask which gradients need an exchange: only the router's, which is the one all-reduce in this loop. The layer has another
# one inside: `balancing_loss` adds up how many tokens chose each expert. The factor 1 / 4 is there for the mean over four ranks.

# %% [markdown] after="Train without and with the balancing loss" tags=["slide-50"]
# ## A question for the room
#
# Data parallel training sums every gradient over the ranks. What would go wrong if you did that with the experts' gradients?

# %% [markdown] tags=["fragment"]
# The arrays have the same shape on all ranks, so there is no error. But they are gradients of different experts, and each rank would add up
# numbers that have nothing to do with each other.

# %% [markdown] after="Draw the load" tags=["notes"]
# Hatched means dropped. It can start below the dashed line of 4 × 10 slots, because one rank's slots can be full while another's are free.
# On the right: without balance, you need a larger factor to drop less, and that means more empty slots to send and compute.

# %% [markdown] after="## What it costs" tags=["notes"]
# The first bar is 246 kB, the second 786 kB. Ask about 64 ranks with as many tokens on each: the all-to-all goes from 3/4 of the slots to
# 63/64, the other way from 3 times a rank's tokens to 63 times.

# %% [markdown] after="Draw the memory" tags=["notes"]
# About a quarter, because a rank has two of eight experts; only the router, 4 kB, is on all ranks. Gradients and Adam's moments shrink in
# the same way.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: an answer may change with the texts that happen to be in the same batch, so models are often served with more slots, or without
# dropping. For 2: more than they need to be, because each rank would have to spread its own tokens, even if its texts are all of one kind.
