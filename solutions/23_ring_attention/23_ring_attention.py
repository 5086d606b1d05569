# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 23 Ring attention
#
# **You will build** attention over a sequence that no rank holds in full: `merge`, `zigzag`, and `ring_attention` with its backward pass.
#
# *{points} points. About 90 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np
from course_lib import cluster, plots, saving
from course_lib.check.attention.kernels import MergeAndZigzagCheck, peak_memory_by_length
from course_lib.check.attention.ring_attention import RingAttentionCheck
from course_lib.check.attention.ring_time import trace_passes
from course_lib.plots import attention, moving

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from course_lib.autograd import Tensor
from course_lib.autograd.block_attention import block_attention, block_backward, positions
from course_lib.collectives import Communicator

everyone = Communicator()
rank = everyone.Get_rank()
chunks = [2 * rank, 2 * rank + 1]  # of the eight chunks of a sequence

# %% Draw who computes what tags=["folded", "slide"]
attention.work_shares({"in plain order": ranks.pull("chunks")}, "Eight chunks of a sequence on four ranks, and the causal mask")

# %% [markdown] tags=["slide"]
# *Context parallelism* splits the sequence itself: q, k and v, of shape `(batch, heads, positions, d)`, are **sharded along dimension 2**
# over the ranks, and so are the output and all gradients. The attention is *causal*: a query sees its own position and earlier ones, and
# the rest is masked. So it needs the keys and values of all earlier positions, and most of those are on other ranks.
#
# Ring attention (Liu et al., 2023, "Ring attention with blockwise transformers for near-infinite context", section 3) never collects them:
# queries stay where they are, and keys and values go round a ring of ranks. With $T$ positions on n ranks, no rank holds $T \times T$
# scores, only $T/n \times T/n$ at a time. The picture shows each rank's queries, and its share of the work. The shares are not equal yet.
#
# ## A worked example: a ring
#
# In each step, a rank sends what it has to the next one, and receives what the previous one had. That takes two arrays: what is being sent
# must not be overwritten. Whose number does rank 0 have after one step? After three? In plain order, which rank has no work in step 1?

# %% Pass it on tags=["slide"]
# %%px
has = np.array([rank])  # stands in for K and V: the number of their owner
whose = [rank]
for _ in range(3):
    received = np.empty_like(has)
    everyone.Sendrecv(has, (rank + 1) % 4, recvbuf=received, source=(rank - 1) % 4)
    has = received
    whose.append(int(has[0]))

# %% Draw the ring tags=["folded", "slide"]
attention.ring_steps(ranks.pull("chunks"), ranks.pull("whose"), "Keys and values in the ring")

# %% [markdown] tags=["slide-50"]
# ## Your turn: merge two parts
#
# A row with scores $s_j$ has the output $\sum_j e^{s_j} v_j / \sum_j e^{s_j}$ and the log-sum-exp $\mathrm{lse} = \log \sum_j e^{s_j}$. To
# merge the outputs for two parts of the keys, weight each by its $e^{\mathrm{lse}}$, add them, and divide by the sum of the weights, whose
# log is the new lse. To avoid overflow, subtract each row's larger lse first (Milakov and Gimelshein, 2018).


# %% Exercise: merge tags=["exercise", "slide-50"]
# %%px
def merge(out, lse, block_out, block_lse):
    """Combine attention to some keys with attention to others.

    Parameters
    ----------
    out, block_out : numpy.ndarray
        Shape ``(..., T, d)``, float32 or float64. Do not modify any of the four arrays.
    lse, block_lse : numpy.ndarray
        Shape ``(..., T)``, same dtype, from -1e4 to 1e4; -inf where the row sees no key
        in that part, in which case its output there is 0.

    Returns
    -------
    out, lse : numpy.ndarray
        Same shapes and dtype, as from one softmax over all keys; 0 and -inf where a row
        sees none, and no NaN. NumPy may warn on the way, as of ``-inf - -inf``.
    """
    ### BEGIN SOLUTION
    both = np.logaddexp(lse, block_lse)
    base = np.where(np.isneginf(both), both.dtype.type(0), both)
    merged = np.exp(lse - base)[..., None] * out
    merged += np.exp(block_lse - base)[..., None] * block_out
    return merged, both
    ### END SOLUTION


# %% Check merge tags=["given"]
check = MergeAndZigzagCheck("merge", ranks)
check.merge(2)
check.merge(1e4)
check.merge(50, np.float32, unseen=True)
check.passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: who gets which chunks
#
# A late chunk sees many keys, and an early one only a few. A rank that has one of each has as much to do as any other.


# %% Exercise: zigzag tags=["exercise", "slide-50"]
# %%px
def zigzag(n_chunks, ranks, rank):
    """The chunks of a sequence that a rank holds, in increasing order: a list of int.

    Parameters
    ----------
    n_chunks : int
        ``2 * ranks * m`` for some integer m. Each rank gets m chunks of the first half,
        in order, and with each chunk c its partner ``n_chunks - 1 - c``.
    ranks, rank : int
        How many ranks there are, and which one this is, from 0.

    Examples
    --------
    >>> zigzag(8, 4, 1), zigzag(8, 2, 0)
    ([1, 6], [0, 1, 6, 7])
    """
    ### BEGIN SOLUTION
    m = n_chunks // (2 * ranks)
    early = list(range(rank * m, (rank + 1) * m))
    return early + [n_chunks - 1 - c for c in reversed(early)]
    ### END SOLUTION


# %% Check zigzag, and draw both orders tags=["given", "slide-50"]
check = MergeAndZigzagCheck("zigzag", ranks)
check.zigzag(8, 4, [[0, 7], [1, 6], [2, 5], [3, 4]])
check.zigzag(8, 2, [[0, 1, 6, 7], [2, 3, 4, 5]])
check.passed()
dealt = ranks.call("zigzag", [dict(n_chunks=8, ranks=4, rank=r) for r in range(4)])
attention.work_shares({"in plain order": ranks.pull("chunks"), "in zigzag order": dealt}, "Two orders, and each rank's share of the work")

# %% [markdown] tags=["slide-50"]
# ## Your turn: the ring
#
# The math for one block is given in `course_lib/autograd/block_attention.py`:
# `out, lse = block_attention(q, k, v, q_positions, k_positions)` and
# `dq, dk, dv = block_backward(grad, out, lse, q, k, v, q_positions, k_positions)`, this block's terms of the gradients. The `out` and `lse`
# that it takes are those for *all* keys: from them it computes the weights again, so none are kept (Dao et al., 2022, "FlashAttention",
# section 3.1). `positions(chunks, length)` gives the positions of chunks of `length` rows in the whole sequence. Write the forward pass
# first: the check begins with it. In the backward pass, K and V go round again, and with them dK and dV, as **partial** sums: a rank adds
# to the sums that came with the K and V it is working on, and passes all four on. One more step, the n-th, brings the sums home, to the
# rank that owns this K and V. Hidden tests use other sizes, and groups of 1 to 4 ranks. In them, `Send` waits for its receiver. When that
# works, save time: start the exchange of the next K and V (`Irecv`, `Isend`) before you compute with those at hand, and wait afterwards. No
# test asks for this *overlap*, but the timeline below shows what it saves. Before that, you can move through a trace of your forward pass.


# %% Exercise: ring_attention tags=["exercise", "slide-50"]
# %%px
def ring_attention(q, k, v, comm):
    """Causal attention over a sequence that is sharded across the ranks of a group.

    Parameters
    ----------
    q, k, v : Tensor
        Shape ``(batch, heads, T / n, d)``, float32 or float64, C-contiguous: the rows
        of chunks ``zigzag(2 * n, n, r)`` on rank r of comm. Do not modify their data.
    comm : Communicator
        The n ranks that share the sequence.

    Returns
    -------
    Tensor
        ``Tensor.from_operation(out, (q, k, v), backward)``: out has the shape and dtype
        of q, and ``backward(grad)`` returns dq, dk, dv for this rank's rows.

    Notes
    -----
    Use messages, not collectives, all in the dtype of q: forward sends K and V n - 1
    times; backward sends them n - 1 times again, and dK and dV n times, and 64 bytes
    may come on top. Hold one block of scores at a time, in at most 6 arrays of its
    size. Of arrays of k's size, hold at most 10 besides the arguments, and keep at most
    4 for backward, however many ranks there are.
    """
    ### BEGIN SOLUTION
    n, rank, length = comm.Get_size(), comm.Get_rank(), q.shape[2] // 2
    at = [positions(zigzag(2 * n, n, (rank - step) % n), length) for step in range(n)]

    def start(*arrays):
        received = [np.empty_like(array) for array in arrays]
        requests = [comm.Irecv(a, (rank - 1) % n, i) for i, a in enumerate(received)]
        requests += [comm.Isend(a, (rank + 1) % n, i) for i, a in enumerate(arrays)]
        return received, requests

    def finish(received, requests):
        for request in requests:
            request.Wait()
        return received

    keys, values = k.data, v.data
    out, lse = np.zeros_like(q.data), np.full(q.shape[:-1], -np.inf, q.dtype)
    for step, now in enumerate(at):
        coming = start(keys, values) if step < n - 1 else None
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))
        keys, values = finish(*coming) if coming else (None, None)

    def backward(grad):
        of_rows, keys, values = (grad, out, lse, q.data), k.data, v.data
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(keys), np.zeros_like(values)
        for step, now in enumerate(at):
            coming = start(keys, values) if step < n - 1 else None
            sums = start(dk, dv) if step > 0 else None
            more = block_backward(*of_rows, keys, values, at[0], now)
            keys, values = finish(*coming) if coming else (None, None)
            dk, dv = finish(*sums) if sums else (dk, dv)
            dq, dk, dv = dq + more[0], dk + more[1], dv + more[2]
        return dq, *finish(*start(dk, dv))

    return Tensor.from_operation(out, (q, k, v), backward)
    ### END SOLUTION


# %% Check ring_attention tags=["given"]
check = RingAttentionCheck("ring_attention, forward", ranks)
check.steps(4, 2)
check.attend(4, large=True)
check.passed()
check = RingAttentionCheck("ring_attention, forward and backward, what it sends and holds", ranks)
check.attend(4, backward=True)
check.attend(3, np.float32, backward=True, layers=2)
check.bytes_sent(4)
check.peak_memory()
check.passed()

# %% Watch a forward pass tags=["folded", "slide-50"]
with ranks.trace(show=False) as traces:
    ranks.run("ring_attention(*map(Tensor, np.ones((3, 1, 2, 512, 16))), everyone)")
moving.ring_attention(traces, dealt, "Your K and V on their way round the ring")

# %% [markdown] tags=["slide-50"]
# ## Who waits for whom
#
# Four ranks on a laptop share its cores, and their messages are copies in its memory. So this cell sets the pace: a block takes as long as
# it would on a device of a given speed, a message as long as on a link of a given bandwidth. First, messages travel only while their
# receiver waits; then also while it computes, as with a network card that works by itself. Are the last two equally slow? Then your
# function waits before it computes. In zigzag order, a block takes $2 d \, (T/n)^2$ FLOP per head, and its K and V have $8 d \, T/n$ bytes.
# So beyond some length, the transfer is hidden entirely (Liu et al., section 3). Predict that length for these speeds, and try it.

# %% Time a pass round the ring tags=["experiment", "slide-50"]
heads, length, d = 1, 4096, 16  # length: positions of the whole sequence
flop_rate, bandwidth = 2e9, 10e6  # FLOP/s of a rank, bytes/s of a link: slow ones
passes = trace_passes(ranks, (1, heads, length, d), flop_rate, bandwidth)

# %% Draw the times tags=["folded", "slide-50"]
plots.timeline(passes, "Ring attention, forward, at the given speeds: the fastest pass of five")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# For long sequences, your four ranks together hold about a quarter of what one rank with the whole sequence does, forward and backward.

# %% Draw the memory tags=["folded", "slide-50"]
lengths = [256, 512, 1024, 1536, 2048]
held = ranks.call(peak_memory_by_length, dict(lengths=lengths))[0]
plots.lines(held, "Peak memory of a step of attention, two heads, float32", "positions", "MB", at=lengths)

# %% Count the bytes tags=["folded", "slide-50"]
plots.traffic(ranks.traffic, "What each rank sent in these five steps")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `context_parallel` in `torch.distributed.tensor.experimental`, with `_templated_ring_attention`; K and V travel in one message,
#   which is started before a block and waited for after it. By default it all-gathers them instead (`set_rotate_method` changes that).
#   `_HeadTailLoadBalancer` is our `zigzag` for one chunk from each half, and `_SDPAMerger` our `merge`, with a sigmoid.
# - Megatron-LM: `--context-parallel-size`. `get_batch_on_this_cp_rank` deals out the chunks in zigzag order, and `--cp-comm-type` says how
#   K and V travel: `p2p` is the ring (the code is `AttnFuncWithCPAndKVP2P` in Transformer Engine), or `all_gather`, or `a2a`.
# - DeepSpeed: `DistributedAttention` in `deepspeed/sequence/layer.py` (Ulysses) has no ring: all-to-alls trade positions for heads, and back.
# - JAX: `jax.lax.ppermute` inside `shard_map` is one step round the ring; its gradient travels the other way by itself.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. With grouped-query attention, K and V have fewer heads than q. What does the ring send then? When would it be cheaper to send q round?
# 2. The softmax of a row is a sum over ranks, with merge instead of plus. Could a collective do it, and what would it send?
#
# The last cells save your functions to `transformer_impl.py`, for later parts, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
saving.save(ranks, "merge", "zigzag", "ring_attention")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# They run when your notebook is graded.

# %% Test: merge tags=["test"] points=4
### BEGIN HIDDEN TESTS
MergeAndZigzagCheck("merge", ranks, show=False).merges(1, 30, 1e3, 1e4)
### END HIDDEN TESTS

# %% Test: merge where nothing was seen tags=["test"] points=2
### BEGIN HIDDEN TESTS
MergeAndZigzagCheck("merge", ranks, show=False).merges(2, 1e4, unseen=True)
### END HIDDEN TESTS

# %% Test: zigzag tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = MergeAndZigzagCheck("zigzag", ranks, show=False)
for size, m in [(n, 1) for n in (*range(1, 9), 16, 17)] + list(enumerate(check.sizes(8, 2, 10), 1)):
    first, second = np.arange(2 * size * m).reshape(2, size, m).tolist()
    check.zigzag(2 * size * m, size, [first[r] + second[-1 - r] for r in range(size)])
### END HIDDEN TESTS

# %% Test: the way forward tags=["test"] points=4
### BEGIN HIDDEN TESTS
RingAttentionCheck("ring_attention, forward", ranks, show=False).steps(4, 3, 2, 1)
### END HIDDEN TESTS

# %% Test: the way back tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = RingAttentionCheck("ring_attention, backward", ranks, show=False)
check.steps(4, 3, 2, 1, backward=True)
check.steps(4, 3, backward=True, layers=2)
### END HIDDEN TESTS

# %% Test: large scores tags=["test"] points=2
### BEGIN HIDDEN TESTS
RingAttentionCheck("ring_attention, large scores", ranks, show=False).steps(4, 2, backward=True, large=True)
### END HIDDEN TESTS

# %% Test: what is sent tags=["test"] points=2
### BEGIN HIDDEN TESTS
RingAttentionCheck("ring_attention, bytes", ranks, show=False).bytes_sent(4, 3, 2)
### END HIDDEN TESTS

# %% Test: what is held tags=["test"] points=2
### BEGIN HIDDEN TESTS
RingAttentionCheck("ring_attention, memory", ranks, show=False).peak_memory()
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
