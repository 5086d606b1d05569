# %% [markdown] after="# 23 Ring attention" tags=["notes"]
# The way back is the heart of this part: what travels is not finished. The grey lines are folded cells: Shift-Enter runs them. Three
# questions for the room come on the way, each with its answer on the next key.

# %% [markdown] after="Draw who computes what" tags=["slide"]
# ## A question for the room
#
# All ranks have as many positions. Why is their work not the same?

# %% [markdown] tags=["fragment"]
# A late query sees many keys, an early one few. In plain order, the last of four ranks computes 7 of 16 parts, the first one.

# %% [markdown] after="*Context parallelism* cuts the sequence itself: q, k, v, `(batch, heads, positions, d)`, are **sharded along dimension 2** over the ranks," tags=["notes"]
# Collect answers to the three questions on the board: rank 0 has rank 3's after one step and rank 1's after three. In step 1, rank 0 has
# nothing to do, as all of rank 3's keys come later than its queries.

# %% [markdown] after="Pass it on" tags=["notes"]
# Point at `received`: a fresh array, as `has` is still on its way out. Ask what happens if all ranks call `Send` first and then `Recv`:
# with these few bytes it works, with more than 64 KB all wait for each other.

# %% [markdown] after="Draw the ring" tags=["notes"]
# Move the slider: dark is what is computed now. In step s, only the ranks from s on have something to do, and in step 3 only rank 3. All
# others wait for it, so the ring takes as long as its busiest rank.

# %% [markdown] after="Draw the ring" tags=["slide"]
# ## A question for the room
#
# After the last step, K and V are one hop short of home. Does anybody have to send them on?

# %% [markdown] tags=["fragment"]
# No: their owner still has them. But dK and dV, which travel with them in backward, must go that last hop.

# %% [markdown] after="## Your turn: merge two parts" tags=["notes"]
# Derive it on the board: out times $e^{lse}$ is the sum before the division, and such sums can simply be added. It is FlashAttention's
# trick, with a rank's keys as the block. Ask from where on the exponential overflows in float64: from about 710.

# %% [markdown] after="Exercise: merge" tags=["notes"]
# Point at `base`: a row that sees nothing on both sides has -inf minus -inf, which is NaN. Two usual slips: the larger lse instead of the
# log of the sum, and weights that are not divided by their sum.

# %% [markdown] after="## Your turn: who gets which chunks" tags=["notes"]
# In plain order, the first rank has 1 of 16 parts of the work, the last one 7. Ask for pairs that make it equal: chunk c sees c and a half
# chunks, so it needs a partner with 7 - c and a half.

# %% [markdown] after="Exercise: zigzag" tags=["notes"]
# Ask for `zigzag(8, 2, 1)` before somebody reads the code: 2, 3, 4, 5. The usual slip is the partner `n_chunks - c`, one too far.

# %% [markdown] after="Check zigzag, and draw both orders" tags=["notes"]
# On the right all have 25 %. It also holds in each single step: with any other rank's keys, two of the four pairs of chunks are visible. So
# nobody waits in any step.

# %% [markdown] after="## Your turn: the ring" tags=["notes"]
# Take your time here. K and V are complete from the start, but dK and dV get a summand at each rank and must end at home: hence n - 1
# messages, and n. Ask why backward takes the lse of all keys: with it, each block's weights are right at once, and nothing must be merged.

# %% [markdown] after="Exercise: ring_attention" tags=["notes"]
# Point at the order in backward: pass on, then add. The last line brings the sums home; without it each rank returns the gradients of the
# next one, in the right shape. Also ask what stays: q, grad, out and lse never travel.

# %% [markdown] after="## What it costs" tags=["notes"]
# Ask why a quarter before you show it: a rank has a quarter of the queries and at a time a quarter of the keys, so a sixteenth of the
# scores. Four times a sixteenth is a quarter.

# %% [markdown] after="Draw the memory" tags=["notes"]
# The upper curve bends upwards, the scores of the whole sequence. The lower one is one rank's share, so multiply it by four for the text's
# claim. Read the ratio at the right end, where the scores outweigh everything else.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# What would an all-gather of K and V cost, in bytes that each rank sends?

# %% [markdown] tags=["fragment"]
# The same as the ring. It is memory that it costs, and time: nobody computes until the last piece is there.

# %% [markdown] after="Count the bytes" tags=["notes"]
# Only messages, and all ranks send the same. In a step a rank sends 20 arrays of the size of its K: 6 forward, 6 on the way back, and 8 for
# dK and dV.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: K, V, dK and dV shrink with the number of their heads. Sending q round means that out and lse travel with it, which pays for few
# queries and a long cache. For 2: merge is associative, so a reduction could do it, but each rank would first need all queries.
