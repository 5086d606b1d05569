# %% Draw the formats after="# 31 Sixteen bits" tags=["given"]
# Draw the formats
exponents = np.arange(-40, 24)
bits = {"float32": np.full(64, 24), "bfloat16": np.full(64, 8), "float16": np.where(exponents > 15, 0, np.clip(exponents + 25, 0, 11))}
plots.lines(bits, "What each format keeps of a number", "log2 of its magnitude", "significant bits", exponents)

# %% [markdown] after="# 31 Sixteen bits" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer. The trainings take a few seconds each. The picture has the whole part in it: float16 keeps more bits, but only in the middle.

# %% [markdown] after="## A worked example: what fits into 16 bits" tags=["notes"]
# One sign bit each; float16 has 5 bits of exponent and 10 of fraction, bfloat16 8 and 7, and the leading 1 is not stored. Find both in the
# picture on the first slide. Then let the room guess the five numbers, in both formats.

# %% [markdown] after="Round some numbers" tags=["notes"]
# Read it column by column. 2049 is 2048 in both: float16 has 11 bits, which ends at 2048. 70,000 is infinite in float16, and 1e-8 is zero;
# bfloat16 has both, but coarsely: 70,000 became 70,144.

# %% [markdown] after="Round some numbers" tags=["slide"]
# ## A question for the room
#
# A model has 16-bit weights, and trains. Why might its optimizer do nothing at all?

# %% [markdown] tags=["fragment"]
# A step is often less than a thousandth of its weight. In bfloat16, two neighboring numbers are up to 1/128 apart, so the sum is rounded
# back to the old weight. Hence the masters in float32.

# %% [markdown] after="## Your turn: gather in 16 bits" tags=["notes"]
# Let the room say what crosses the network, and in which format each copy is: masters in float32 on one rank, whole parameters with 16-bit
# values on all of them.

# %% [markdown] after="Exercise: gather_as" tags=["notes"]
# Three lines. Point at `encode(shard, dtype)`: it makes a new array. Rounding the shard in place gives the same values here, and destroys
# the masters. Gathering first and rounding afterwards gives the same values as well, and saves nothing.

# %% [markdown] after="## A worked example: why masters have 32 bits" tags=["notes"]
# Let them answer before you run it: 500 times 0.0002 is 0.1, so 0.9 is left.

# %% [markdown] after="Take small steps" tags=["notes"]
# Both 16-bit weights are still exactly 1: below 1, float16's neighbors are 0.0005 apart, and less than half of that is rounded away.

# %% [markdown] after="## Your turn: reduce in 16 bits" tags=["notes"]
# The same loss of small numbers, in a sum over ranks. With a thousand ranks, the running sum is a thousand times each term, so it happens
# to ordinary gradients, too.

# %% [markdown] after="Exercise: reduce_as" tags=["notes"]
# An all-to-all moves as many bytes as a ring's reduce-scatter, (n - 1) / n of the array, but each rank adds by itself, in float32.
# Where does the division stand? After the sum: before sending, it would push small gradients below float16's range.

# %% [markdown] after="Exercise: reduce_as" tags=["slide-50"]
# ## A question for the room
#
# A ring's reduce-scatter in bfloat16 sends as many bytes as this all-to-all. Why does nearly everybody use it all the same?

# %% [markdown] tags=["fragment"]
# A ring talks to two neighbors only, in large messages; an all-to-all talks to all ranks, in n small ones. And switches or GPUs can add
# while they pass data on. Megatron-LM offers both.

# %% [markdown] after="## Your turn: scale the loss" tags=["notes"]
# Draw a 2 × 2 grid, and mark an overflow in one corner. After the first axis, two ranks know. If they now pass on what they *know*, and not
# their own flag, all four do. The unscaled norm counts for clipping: otherwise the factor decides how hard you clip.

# %% [markdown] after="Exercise: LossScaler" tags=["notes"]
# One number per axis is enough: the sum of squares is not finite exactly if a gradient is not, as squares are added in float64. So the
# norm for clipping and the overflow flag come in the same all-reduce. `norm` also tells whether this step has been unscaled.

# %% [markdown] after="Check the LossScaler" tags=["slide"]
# ## A question for the room
#
# One rank of a thousand skips its step, and the others do not. When would you notice?

# %% [markdown] tags=["fragment"]
# Perhaps never: nothing crashes. With sharded parameters, one part of the model is a step behind, and its scaling factor differs from then
# on, so its gradients have another size than the others'. The loss goes down all the same, only more slowly.

# %% [markdown] after="## All together" tags=["notes"]
# `share` is the one trick of this experiment: with 1,024 tokens in a step, float16 would do without scaling. Four million tokens in a step
# is what large runs have. Adam divides by the gradients' size, so in float32 `share` changes nothing.

# %% [markdown] after="Take a step in two formats" tags=["notes"]
# The gather is on the left of each step, the all-to-all on the right. They take half the time, at the speed set in the second cell; forward
# and backward take as long as before, and rounding comes on top, as NumPy computes in float32. A GPU computes in 16 bits as well, and faster.

# %% [markdown] after="Train in a format" tags=["notes"]
# Follow one step: gather in 16 bits, forward, scale, backward, reduce in 16 bits, step in float32, update. `most=share` is a norm of 1 for
# the gradients of an average over our own tokens.

# %% [markdown] after="Draw the losses" tags=["notes"]
# bfloat16 lies on float32, at half the bytes. float16 without scaling hardly learns. With scaling, it first skips some steps, because the
# factor begins far too large on purpose, and then joins the others.

# %% [markdown] after="Most large models train in bfloat16: it has float32's range, and needs no scaling. The scaled run skips its first steps. What does it save?" tags=["notes"]
# Ask for a guess before the next slide: which part of all gradients is lost?

# %% [markdown] after="Draw the gradients" tags=["notes"]
# On the left, about a quarter of the gradients are zero in float16, and the rest have fewer bits. The factor moves all of them to the right
# without changing the shape. Ask where it could move too far: at the right edge, where the overflow is.

# %% [markdown] after="Draw the factor" tags=["notes"]
# Each step down is a skipped step, on all four ranks. Each step up comes after twenty good ones. It probes for the largest factor that
# works, so some overflows are normal: in a long run, one in a couple of thousand steps.

# %% [markdown] after="## Eight bits" tags=["notes"]
# The scale is the block's largest magnitude, divided by 127. Why blocks? One large number makes its neighbors coarse; with blocks of 256,
# only those in its block.

# %% [markdown] after="Train with int8 blocks" tags=["notes"]
# With 127 levels, int8 is as good as float32 at a quarter of the bytes, with or without feedback. With -1, 0 and 1, most numbers round to
# zero; error feedback saves them up until they count, and gets back a good part of the difference.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: `decode` returns float32, because NumPy multiplies fast only there. A GPU keeps 16 bits in memory. For 2: parameters are rounded
# once and never added up, gradients are; with many ranks, the sum matters more than the sending.
