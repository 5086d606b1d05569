# %% Draw the polynomial after="# 36 Optimizers and shards" tags=["given"]
# Draw the polynomial
from course_lib.check.muon.iteration import polynomial

sizes = np.linspace(0, 1, 201)
steps = {f"{n} step{'s' * (n > 1)}": polynomial(sizes, n) for n in (1, 3, 5)}
plots.lines(steps, "What Newton-Schulz does to a singular value", "before", "after", sizes)

# %% [markdown] after="# 36 Optimizers and shards" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows
# the answer. The training takes up to half a minute; nothing else takes longer than a few seconds. The picture shows the aim: lines near 1.

# %% [markdown] after="## A worked example: Adam does not care where you cut" tags=["notes"]
# Ask who still knows part 09: which numbers does Adam need to update one parameter? Its own gradient and its own two moments, and nothing of
# its neighbours. So any cut is as good as another.

# %% [markdown] after="Compare with one Adam" tags=["notes"]
# Zero, or a rounding error: the reduce-scatter may add up in another order than the mean on one rank. The 35 numbers are cut into parts
# of 9, in the middle of rows.

# %% [markdown] after="## Muon needs whole matrices" tags=["notes"]
# Draw U S Vᵀ as rotate, stretch, rotate. Then say what Muon does: it keeps the rotations, and stretches all directions equally. Let the room
# guess before you run the cell: all ones, too?

# %% [markdown] after="Compare singular values" tags=["notes"]
# As a whole, all are 1. The four parts each have ones, but put together they have singular values between 0.2 and 2, the root of four:
# where parts agree about a direction, it counts twice as much. Nothing crashes, and training even goes on; it is another optimizer.

# %% [markdown] after="Compare singular values" tags=["slide"]
# ## A question for the room
#
# ZeRO cuts flat arrays into equal parts. How would you cut for Muon?

# %% [markdown] tags=["fragment"]
# Between matrices: each rank gets whole ones. Parts are no longer equal, so someone has to balance them. And a matrix that tensor parallel
# ranks share has to be put together first, wherever that is.

# %% [markdown] after="## Your turn: without singular values" tags=["notes"]
# On the board: X = U S Vᵀ, so X Xᵀ X = U S Vᵀ V S Uᵀ U S Vᵀ = U S³ Vᵀ. The polynomial acts on each singular value alone. The coefficients
# were tuned to lift small values fast; they never settle at 1, and need not.

# %% [markdown] after="Exercise: newton_schulz" tags=["notes"]
# Seven lines. Ask what happens without the transposition: the same result, but for 4,000 rows and 100 columns a square of 4,000 by 4,000.
# And without the small number: zeros divided by zero.

# %% [markdown] after="## Your turn: who does which matrix?" tags=["notes"]
# Take suggestions first: in turn, equal numbers, equal elements. Elements mislead: 128 × 128 and 8 × 2,048 have as many, but the square takes
# 24 times as long.

# %% [markdown] after="Exercise: owners" tags=["notes"]
# Largest first, to the one with least to do: Graham, 1969. At most a third above the best, and with many matrices next to nothing. Ties must
# be broken in the same way on all ranks; sorted is stable, so they are.

# %% [markdown] after="Draw the loads" tags=["notes"]
# In turn looks harmless, but blocks repeat with the same period as ranks: rank 1 always gets the small one. All wait for the longest bar.

# %% [markdown] after="Draw the loads" tags=["slide-50"]
# ## A question for the room
#
# A step sends each gradient to one rank, and each update back to all. Is that more than the all-reduce of ordinary data parallelism?

# %% [markdown] tags=["fragment"]
# No: a ring's all-reduce is a reduce-scatter and an all-gather. Here they have unequal parts, and between them each rank computes on
# whole matrices. The bytes are the same.

# %% [markdown] after="## Your turn: a step on all ranks" tags=["notes"]
# Three phases. Stress that all matrices go out before the first is computed: in a loop over matrices, three ranks would wait for
# the owner each time, and nothing would be gained. Then the grid: (data, tensor), tensor varies fastest.

# %% [markdown] after="Exercise: ShardedMuon" tags=["notes"]
# Read it from the two Alltoallv outwards. The array that arrives has an axis for data parallel ranks, which is summed, and one for tensor
# parallel ranks, whose parts are joined. The sum is in rank order, always, hence the same bits. At the end each rank gets its part back.

# %% [markdown] after="## What it costs" tags=["notes"]
# Let the room vote: the same losses to how many digits? Then run the next cells. While they train, ask what the middle one wastes.

# %% [markdown] after="Train in three ways" tags=["notes"]
# Adam's learning rate is the best of five that we tried, in 40 steps. Ask whether that is fair to the others, and how one would compare
# optimizers fairly.

# %% [markdown] after="Draw the loss against steps" tags=["notes"]
# The dotted line lies on the dashed one: all bits are the same, as both add up in rank order. Muon is a little ahead of Adam.

# %% [markdown] after="Draw the loss against seconds" tags=["notes"]
# Per second, a step's price counts. On each rank, Muon may lose its lead; sharded, the optimizer takes less than half of the time, even if
# four ranks share two cores. On a busy machine these lines change places; run it again.

# %% [markdown] after="Trace a step" tags=["notes"]
# Forward and backward, then the first exchange, then a dark bar for each matrix, then the second exchange, and Adam's at the end. Who has the
# longest row of dark bars keeps the others waiting. Hover over a bar for its name.

# %% [markdown] after="Trace a step" tags=["slide-50"]
# ## A question for the room
#
# With a thousand data parallel ranks and two hundred matrices, most ranks own nothing. What now?

# %% [markdown] tags=["fragment"]
# Let several ranks share one product: X Xᵀ can be computed from columns and added up, an all-reduce per step of the iteration. Or shard
# along one axis of the grid only, and repeat the work along the other.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: 7 and 6; it matters when few large matrices decide. For 2: Adam's part, other communication, or a share of the products. For 3: the
# parts go to the owner, already added up, so only (n - 1) / n of one part each, and the same back.
