# %% [markdown] after="# 23 Ring attention" tags=["notes"]
# The backward pass is the heart of this part: the sums that travel there are not complete yet. The grey lines are folded cells; Shift-Enter
# runs them. There are three questions for the room along the way; the next key press shows the answer.

# %% [markdown] after="Draw who computes what" tags=["slide"]
# ## A question for the room
#
# All ranks have the same number of positions. Why is their work not the same?

# %% [markdown] tags=["fragment"]
# A late query sees many keys, an early one only a few. In plain order, the last of four ranks computes 7 of 16 parts, the first only 1.

# %% [markdown] after="*Context parallelism* splits the sequence itself: q, k and v, of shape `(batch, heads, positions, d)`, are **sharded along dimension 2**" tags=["notes"]
# Collect answers to the three questions on the board: rank 0 has rank 3's number after one step, and rank 1's after three. In step 1, rank
# 0 has nothing to do, because all of rank 3's keys come later than its queries.

# %% [markdown] after="Pass it on" tags=["notes"]
# Point at `received`: a fresh array, because `has` is still being sent. Ask what happens if all ranks call `Send` first and then `Recv`:
# with so few bytes it works; with more than 64 KB, all of them wait for each other.

# %% [markdown] after="Draw the ring" tags=["notes"]
# Move the slider: strong colors are what is computed now. In step s, only ranks s and above have something to do, and in step 3 only rank 3.
# All others wait for it, so the ring takes as long as its busiest rank.

# %% [markdown] after="Draw the ring" tags=["slide"]
# ## A question for the room
#
# After the last step, K and V are one hop short of home. Does anybody have to send them on?

# %% [markdown] tags=["fragment"]
# No: their owner still has them. But dK and dV, which travel with them in the backward pass, must make that last hop.

# %% [markdown] after="## Your turn: merge two parts" tags=["notes"]
# Derive it on the board: out times $e^{lse}$ is the sum before the division, and such sums can simply be added. It is FlashAttention's
# trick, with a rank's keys as the block. Ask where the exponential overflows in float64: at about 710.

# %% [markdown] after="Exercise: merge" tags=["notes"]
# Point at `base`: without it, a row that sees nothing on either side gives -inf minus -inf, which is NaN. Two common slips: taking the
# larger lse instead of the log of the sum, and not dividing the weights by their sum.

# %% [markdown] after="## Your turn: who gets which chunks" tags=["notes"]
# In plain order, the first rank has 1 of 16 parts of the work, the last one 7. Ask for pairs that even it out: chunk c sees c and a half
# chunks, so it needs a partner with 7 - c and a half.

# %% [markdown] after="Exercise: zigzag" tags=["notes"]
# Ask for `zigzag(8, 2, 1)` before anyone reads the code: 2, 3, 4, 5. The common slip is the partner `n_chunks - c`, which is off by one.

# %% [markdown] after="Check zigzag, and draw both orders" tags=["notes"]
# On the right, every rank has 25%. That also holds in each single step: with any other rank's keys, two of the four pairs of chunks are
# visible. So nobody waits in any step.

# %% [markdown] after="## Your turn: the ring" tags=["notes"]
# Take your time here. K and V are complete from the start, but dK and dV pick up a term at each rank and must end up at home: hence n - 1
# messages for the former, and n for the latter. Ask why backward takes the lse of all keys: with it, each block's weights are right
# immediately, and nothing has to be merged.

# %% [markdown] after="Exercise: ring_attention" tags=["notes"]
# Point at what lies between `start` and `finish`: the block's computation, which needs nothing that is on its way. Then at the backward
# pass: sums travel on, and this block's terms are added afterwards. The last line brings the sums home; without it, each rank returns the
# gradients of the next one, in the right shape. Also ask what stays put: q, grad, out and lse never travel.

# %% [markdown] after="Watch a forward pass" tags=["notes"]
# Move the slider slowly: in the frames between the steps, each arrow carries the K and V that its rank has just used. Ask what the ranks do
# while the arrows move; the percentage in the sentence says how much of that time the receivers computed.

# %% [markdown] after="## Who waits for whom" tags=["notes"]
# The length is 4 times FLOP/s over bytes/s for each rank: 800 positions, 3200 in all. Twice as many with half the bandwidth. In float32, K
# and V have 8 bytes per number pair; bfloat16 halves that.

# %% [markdown] after="Time a pass round the ring" tags=["notes"]
# The blocks' times are made up, and asleep: four ranks on two cores would only show who gets a core. Messages, order and waits are real. For
# the room, change `bandwidth` to 5e6, and run both cells again: the transfers come back.

# %% [markdown] after="Draw the times" tags=["notes"]
# Top: hatched is waiting for another rank, and rank 3 never does. Ask why rank 0, with a sixteenth of the work, is not done long
# before: its K and V come from rank 3, which passes them on only between two blocks. Middle: nobody waits for anybody, all wait for the link (solid). Bottom:
# the link works while the ranks do. Plain to zigzag saves 3.5 to 2 blocks' time; overlap saves three transfers.

# %% [markdown] after="## What it costs" tags=["notes"]
# Before you show it, ask why a quarter: a rank has a quarter of the queries and, at any time, a quarter of the keys, so a sixteenth of the
# scores. Four times a sixteenth is a quarter.

# %% [markdown] after="Draw the memory" tags=["notes"]
# The upper curve bends upwards, because of the scores of the whole sequence. The lower one is a single rank's share, so multiply it by four
# to check the claim in the text. Read the ratio at the right end, where the scores outweigh everything else.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# How many bytes would each rank send if you all-gathered K and V instead?

# %% [markdown] tags=["fragment"]
# As many as in the ring. What the all-gather costs is memory, and time: nobody computes until the last piece is there.

# %% [markdown] after="Count the bytes" tags=["notes"]
# There are only messages, and all ranks send the same amount. In one step, a rank sends 20 arrays the size of its K: 6 in the forward pass,
# and in the backward pass 6 for K and V and 8 for dK and dV.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: K, V, dK and dV shrink with the number of their heads. If you send q round, out and lse have to travel with it, which pays off for
# few queries and a long cache. For 2: merge is associative, so a reduction could do it, but each rank would first need all the queries.
