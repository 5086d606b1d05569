# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 30 Your own collectives
#
# **You will build** the collectives of [part 00](00_warmup.ipynb) from messages between two ranks: reduce-scatter, all-gather
# and all-reduce in a ring, a broadcast along a tree, an all-to-all in pairs, and a function that chooses the faster of two algorithms.
#
# *{points} points. About 90 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np
from course_lib import cluster, plots
from course_lib.check.collectives.check import CollectivesCheck
from course_lib.check.collectives.choose import ChoiceCheck
from course_lib.collectives import ring
from course_lib.plots import alpha_beta

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from mpi4py import MPI
from course_lib.collectives import Communicator
from course_lib.plots import alpha_beta
from course_lib.trace import span

everyone = Communicator()
rank = everyone.Get_rank()
four_mb = np.ones(500_000)  # for the trace: made here, so that it shows messages only

# %% [markdown] tags=["slide"]
# A ring of four ranks, as in part 00. Each array is cut into four pieces. In each step, a rank sends one piece to the next and gets one
# from the previous: first it adds that to its own (a **reduce-scatter**), then it copies (an **all-gather**). Which does rank 0 send first?

# %% Draw a ring tags=["folded", "slide"]
arrays = [dict(mine=10.0**r * np.arange(1, 5)) for r in range(4)]
counts = ranks.call(ring.allreduce, dict(mine=np.ones(4)))
plots.ring(ranks.call(ring.allreduce, arrays), counts, "A ring all-reduce")

# %% [markdown] tags=["slide"]
# ## Messages
#
# A message takes two calls: `comm.Send(array, dest)` on one rank, and `comm.Recv(array, source)` on the other, which overwrites its array.
# Size and dtype must agree. When does `Send` return? MPI may copy a small array to a buffer and go on at once; a large one waits until its
# receiver takes it (*rendezvous*). No program may rely on the buffer. Here each rank first sends, then receives. Which size works?

# %% Send first, then receive tags=["experiment", "raises-exception", "slide"]
# %%px
for count in (10, 100_000):
    sent, received = np.full(count, rank), np.empty(count, int)
    everyone.Send(sent, dest=(rank + 1) % 4)
    everyone.Recv(received, source=(rank - 1) % 4)
    print(count, "numbers have arrived")

# %% [markdown] tags=["slide-50"]
# `comm.Sendrecv(sent, dest, recvbuf=received, source=source)` does both at the same time, so nobody waits for a rank that waits.
# `comm.Isend` and `comm.Irecv` only start a message and return a request, whose `Wait()` completes it.
#
# ## A worked example: recursive doubling
#
# This all-reduce takes $\log_2 n$ steps. In step 1, neighbours exchange arrays and both add them up; in step 2, pairs of pairs do, and so on.
# `op(a, b)` combines two arrays: `np.add`, `np.minimum`, `np.maximum` or `np.multiply`. What goes wrong with three ranks?


# %% All-reduce by recursive doubling tags=["slide-50"]
# %%px
def all_reduce_by_doubling(x, comm, op):
    """All-reduce on a number of ranks that is a power of two; returns a new array."""
    result, received, distance = x.copy(), np.empty_like(x), 1
    while distance < comm.Get_size():
        partner = comm.Get_rank() ^ distance  # flips one bit: 0 and 1, 2 and 3; 0 and 2
        comm.Sendrecv(result, partner, recvbuf=received, source=partner)
        result, distance = op(result, received), 2 * distance
    return result


print(all_reduce_by_doubling(np.arange(4.0) + rank, everyone, np.add))

# %% [markdown] tags=["slide-50"]
# ## Your turn: reduce-scatter in a ring
#
# Recursive doubling sends the whole array $\log_2 n$ times; the ring sends $n - 1$ pieces, each $1/n$ of it. A piece starts on one rank,
# takes in the values of each rank on its way, and ends where it belongs. In the picture, rank r ends with piece r + 1 complete; here it
# should be piece r: work out which piece has to leave rank r first.
#
# In all functions of this part, arrays are C-contiguous, of any dtype that MPI can add, and the same in shape and dtype on all ranks; they
# may be empty. Do not change them: return a new array of the same dtype. `comm` has one rank, four, or 17. Use only `Send`,
# `Recv`, `Sendrecv`, `Isend` and `Irecv`. Hidden tests count messages and bytes; a `Send` of more than 64 bytes waits for its receiver.


# %% Exercise: ring_reduce_scatter tags=["exercise", "slide-50"]
# %%px
def ring_reduce_scatter(x, comm, op):
    """Combine the arrays of all ranks; rank r gets piece r, of shape ``(k,)``.

    x has any shape. It is flattened and cut into n pieces of ``k = ceil(x.size / n)``
    elements; if n does not divide the size, zeros fill up the end. In each of n - 1
    steps, a rank sends one piece to the next rank, and gets one. It calls no
    collective.
    """
    ### BEGIN SOLUTION
    n, rank = comm.Get_size(), comm.Get_rank()
    pieces = np.zeros((n, -(-x.size // n)), x.dtype)
    pieces.reshape(-1)[: x.size] = x.reshape(-1)
    received = np.empty_like(pieces[0])
    for step in range(1, n):
        sent, added = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        comm.Sendrecv(sent, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        op(received, added, out=added)
    return pieces[rank].copy()
    ### END SOLUTION


# %% Check ring_reduce_scatter tags=["given"]
CollectivesCheck("ring_reduce_scatter", ranks).everything().passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: all-gather, and both together
#
# Now each rank has a finished piece, and all need all of them: a rank passes on what it has just received. An all-reduce is both in turn.


# %% Exercise: ring_all_gather tags=["exercise", "slide-50"]
# %%px
def ring_all_gather(part, comm):
    """Join the parts of all ranks, in rank order: from shape ``(k,)`` to ``(n * k,)``.

    In each of n - 1 steps, a rank sends one part to the next rank, and gets one. It
    calls no collective.
    """
    ### BEGIN SOLUTION
    n, rank = comm.Get_size(), comm.Get_rank()
    parts = np.tile(part, (n, 1))
    for step in range(n - 1):
        sent, received = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        comm.Sendrecv(sent, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
    return parts.reshape(-1)
    ### END SOLUTION


# %% Exercise: ring_all_reduce tags=["exercise", "slide-50"]
# %%px
def ring_all_reduce(x, comm, op):
    """Combine the arrays of all ranks; each gets the whole result, in the shape of x.

    A rank sends 2 (n - 1) messages to its neighbors, each of ``ceil(x.size / n)``
    elements at most. It calls no collective.
    """
    ### BEGIN SOLUTION
    whole = ring_all_gather(ring_reduce_scatter(x, comm, op), comm)
    return whole[: x.size].reshape(x.shape)
    ### END SOLUTION


# %% Check ring_all_gather and ring_all_reduce tags=["given"]
CollectivesCheck("ring_all_gather", ranks).everything().passed()
CollectivesCheck("ring_all_reduce", ranks).everything().passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: a broadcast along a tree
#
# If the root sends its array to each rank in turn, the last has it after n - 1 steps. But each rank that has it can pass it on: then their
# number doubles in each step, and $\lceil \log_2 n \rceil$ steps are enough. Count the ranks from the root: `place = (rank - root) % n`.


# %% Exercise: tree_broadcast tags=["exercise", "slide-50"]
# %%px
def tree_broadcast(x, comm, root):
    """Return the root's array on all ranks. Elsewhere, the values of x do not count.

    Each rank but the root gets one message, the whole array, after at most
    ``ceil(log2(n))`` steps. In a step, a rank sends at most one. It calls no
    collective.
    """
    ### BEGIN SOLUTION
    n, place = comm.Get_size(), (comm.Get_rank() - root) % comm.Get_size()
    result, have = x.copy(), 1  # the first `have` places have the array
    while have < n:
        if place < have and place + have < n:
            comm.Send(result, (place + have + root) % n)
        elif have <= place < 2 * have:
            comm.Recv(result, (place - have + root) % n)
        have *= 2
    return result
    ### END SOLUTION


# %% Check tree_broadcast tags=["given"]
CollectivesCheck("tree_broadcast", ranks).everything().passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: all-to-all in pairs
#
# Row j of x is for rank j: the exchange that experts (part 24) need. If all begin with their row for rank 0, rank 0 receives three messages
# at once, and the others none. In step s, a rank can instead send to the rank s places on, and receive from the rank s places back.


# %% Exercise: pairwise_all_to_all tags=["exercise", "slide-50"]
# %%px
def pairwise_all_to_all(x, comm):
    """Send row j to rank j. Row j of the result, in the shape of x, comes from rank j.

    x has shape ``(n, ...)``, at least two dimensions. n - 1 steps: in each, every rank
    sends one row, and no two send to the same rank; nobody sends to itself. It calls no
    collective.
    """
    ### BEGIN SOLUTION
    n, rank = comm.Get_size(), comm.Get_rank()
    result = x.copy()
    for step in range(1, n):
        dest, source = (rank + step) % n, (rank - step) % n
        comm.Sendrecv(x[dest], dest, recvbuf=result[source], source=source)
    return result
    ### END SOLUTION


# %% Check pairwise_all_to_all tags=["given"]
CollectivesCheck("pairwise_all_to_all", ranks).everything().passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: choose
#
# By the model of part 00, a message of m bytes takes $\alpha + m / \beta$; a rank can send and receive at once. For an all-reduce of B bytes,
# recursive doubling takes $\log_2 n$ steps of B bytes, the ring $2 (n - 1)$ steps of $B / n$ bytes. Libraries choose by such a model (Thakur,
# Rabenseifner and Gropp, 2005, "Optimization of collective communication operations in MPICH"). From which size on is the ring faster?


# %% Exercise: choose tags=["exercise", "slide-50"]
# %%px
def choose(nbytes, n, alpha, beta):
    """The faster algorithm for an all-reduce: "ring" or "recursive doubling".

    nbytes is the size of the array, n the number of ranks, a power of two from 2; alpha
    is the latency of a message in seconds, and beta the bandwidth in bytes per second.
    """
    ### BEGIN SOLUTION
    ring = 2 * (n - 1) * (alpha + nbytes / n / beta)
    doubling = np.log2(n) * (alpha + nbytes / beta)
    return "ring" if ring < doubling else "recursive doubling"
    ### END SOLUTION


# %% Check choose tags=["given"]
ChoiceCheck("choose", ranks).everything().passed()

# %% [markdown] tags=["slide-50"]
# ## What it costs, and a race
#
# Here are your ring all-reduce and then your broadcast, each of 4 MB; arrows are messages. Which ranks wait longest in the tree?

# %% Trace the ring and the tree tags=["experiment"]
# %%px --trace
everyone.Barrier()
with span("ring"):
    ring_all_reduce(four_mb, everyone, np.add)
with span("tree"):
    tree_broadcast(four_mb, everyone, root=0)

# %% [markdown] tags=["slide-50"]
# First the bytes that a rank sends. Then a race: your ring, recursive doubling, and MPICH's `Allreduce`, in C. Which is fastest at 4 MB?
# From which size on does your ring beat recursive doubling? With fewer cores than ranks, run it twice. What does the model leave out?


# %% Count the bytes tags=["folded"]
def one_all_reduce(ring):
    (ring_all_reduce if ring else all_reduce_by_doubling)(np.ones(8000), everyone, np.add)


moved = [(ranks.call(one_all_reduce, dict(ring=r)), ranks.traffic[0])[1] for r in (0, 1)]
plots.traffic(moved, "What rank 0 sends for 64 kB", ["recursive doubling", "your ring"])

# %% Run the race tags=["experiment", "slide-50"]
# %%px
sizes = [64 * 4**i for i in range(9)]  # bytes, from 64 B to 4 MB
entrants = {
    "your ring": lambda x, _: ring_all_reduce(x, everyone, np.add),
    "recursive doubling": lambda x, _: all_reduce_by_doubling(x, everyone, np.add),
    "MPICH": MPI.COMM_WORLD.Allreduce,
    "a message": lambda x, y: everyone.Sendrecv(x, rank ^ 1, 0, y, rank ^ 1),
}
times = {n: alpha_beta.measure(everyone, sizes, 15, f) for n, f in entrants.items()}

# %% Draw the race tags=["experiment", "slide-50"]
sizes, times = (ranks.pull(name)[0] for name in ("sizes", "times"))
alpha, beta = alpha_beta.fit(sizes, times.pop("a message"))
steps = {"your ring": (6, 1 / 4), "recursive doubling": (2, 1)}  # number, share of x
print(f"a message: alpha {1e6 * alpha:.0f} microseconds, beta {beta / 1e9:.2f} GB/s")
alpha_beta.compare(sizes, times, "An all-reduce on four ranks", alpha, beta, steps)

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - MPICH: a file for each algorithm in `src/mpi/coll/allreduce/` and `alltoall/`; `MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM` picks one.
# - NCCL: `runRing` and `runTreeSplit` in `src/device/all_reduce.h`. `ncclTopoTuneModel` in `src/graph/tuning.cc` chooses; see `NCCL_ALGO`.
# - Gloo, PyTorch's backend for CPUs: `gloo/allreduce.cc` has a ring. JAX: `jax.lax.ppermute` is one step round a ring.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
# 1. The tree sends the whole array in each step. How could a chain broadcast 1 GB to 64 ranks in about the time of *one* message?
# 2. Floating-point addition is not associative. What would go wrong in training if the ranks' results differed in their last bits?

# %% [markdown] tags=["skip"]
# ## Hidden tests
# They run when your notebook is graded, with the same cases as above, and count messages: groups of one to 17 ranks, and empty arrays, too.

# %% Test: reduce-scatter tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = CollectivesCheck("ring_reduce_scatter", ranks, show=False).everything()
### END HIDDEN TESTS

# %% Test: all-gather tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = CollectivesCheck("ring_all_gather", ranks, show=False).everything()
### END HIDDEN TESTS

# %% Test: all-reduce tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = CollectivesCheck("ring_all_reduce", ranks, show=False).everything()
### END HIDDEN TESTS

# %% Test: broadcast tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = CollectivesCheck("tree_broadcast", ranks, cost=False, show=False).everything()
### END HIDDEN TESTS

# %% Test: the steps of the tree tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = CollectivesCheck("tree_broadcast", ranks, show=False).everything()
### END HIDDEN TESTS

# %% Test: all-to-all tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = CollectivesCheck("pairwise_all_to_all", ranks, show=False).everything()
### END HIDDEN TESTS

# %% Test: choose tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = ChoiceCheck("choose", ranks, show=False).everything()
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
