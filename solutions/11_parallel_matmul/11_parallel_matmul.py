# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 11 A matrix product on four ranks
#
# **You will build** `par_matmul_by_row` and `par_matmul_by_reduction`: two ways to split the work of a single product $C = A B$. They are
# two of only four cases, which cover all products of sharded matrices in this course.
#
# *{points} points. About 40 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, placement, plots
from course_lib.check.matmul.check import MatmulCheck
from course_lib.check.matmul.questions import own_products

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np

from course_lib.collectives import Communicator

comm = Communicator()
rank, size = comm.Get_rank(), comm.Get_size()


def sizes(A, B):
    """Return m, k and n on every rank, for A of shape (m, k) and B of shape (k, n). All ranks must call it; only rank 0 needs A and B."""
    numbers = np.array([*A.shape, B.shape[1]]) if rank == 0 else np.empty(3, int)
    comm.Bcast(numbers, root=0)
    return numbers.tolist()


# %% [markdown] tags=["slide"]
# A and B are on rank 0, and the other ranks have cores that could help. Row i of C needs row i of A and all of B:
#
# $$ C = \begin{pmatrix} A_0 \\ A_1 \\ A_2 \\ A_3 \end{pmatrix} B = \begin{pmatrix} A_0 B \\ A_1 B \\ A_2 B \\ A_3 B \end{pmatrix} $$
#
# Or split the work the other way. A rank that has some *columns* of A and the matching *rows* of B can compute one of the summands that
# make up C:
#
# $$ C = \begin{pmatrix} A_0 & A_1 & A_2 & A_3 \end{pmatrix} \begin{pmatrix} B_0 \\ B_1 \\ B_2 \\ B_3 \end{pmatrix}
# = A_0 B_0 + A_1 B_1 + A_2 B_2 + A_3 B_3 $$

# %% The pieces
# %%px
A = np.arange(64.0).reshape(8, 8)
row_piece = np.split(A, size, axis=0)[rank]
column_piece = np.split(A, size, axis=1)[rank]

# %% Draw the pieces by row tags=["folded", "slide"]
plots.holdings(np.arange(64.0).reshape(8, 8), ranks.pull("row_piece"), "By row: the piece of A (and of C) on each rank")

# %% Draw the pieces by reduction tags=["folded", "slide"]
plots.holdings(
    np.arange(64.0).reshape(8, 8),
    ranks.pull("column_piece"),
    "By reduction: the piece of A on each rank, which also has the matching rows of B",
)

# %% [markdown] tags=["slide"]
# ## Four cases
#
# Each matrix is **replicated** on the ranks or **sharded** by rows or columns (part 03). What can the ranks do without sending anything?
# Look at the *contracted* dimension, the one that the product sums over: the columns of A and the rows of B.
#
# 1. It is sharded in neither, and at most one of the two is sharded. The ranks' own products are rows or columns of C, or all of it.
# 2. It is sharded in one of them only. The shapes do not match, so that matrix is gathered first. (Or, if the other one is replicated, each
#    rank takes its slice of that, and it is case 3.)
# 3. It is sharded in both. Each rank has one term of the sum: C is **partial**. An all-reduce makes it replicated, a reduce-scatter
#    sharded.
# 4. A is sharded by rows and B by columns, on the same ranks. Each rank gets one block of C on the diagonal, and nobody computes the
#    others. One of the two must be gathered.

# %% Draw the four cases tags=["folded", "slide"]
rows, columns, whole = placement.sharded(0), placement.sharded(1), placement.replicated
cases = {"case 1": (rows, whole), "case 2": (columns, whole), "case 3": (columns, rows), "case 4": (rows, columns)}
plots.products(cases, "C = A B on four ranks")

# %% [markdown] tags=["slide"]
# ## Three quick questions
#
# Each is a product from training. Are the ranks' own products *replicated*, *sharded by rows*, *sharded by columns* or *partial*? Or must
# they *gather first*? Put your answers in place of the question marks, and run the cell. (No points; if you are wrong, try again.)

# %% Your three answers
print("1. fc1: all ranks have the samples X, each has columns of the weight W. Y = X W")
own_products("replicated", "sharded by columns", answer="?")

print("2. naive fc2: X is sharded by columns, and so is W. Y = X W")
own_products("sharded by columns", "sharded by columns", answer="?")

print("3. data parallel: X and G are sharded by rows, the samples. grad W = X.T G")
own_products("sharded by columns", "sharded by rows", answer="?")

# %% [markdown] tags=["slide"]
# ## A worked example: collectives with a root
#
# `Scatter(sendbuf, recvbuf, root)` deals out equal parts, and `Gather(sendbuf, recvbuf, root)` collects them again. Only the root needs the
# full array; on the other ranks it can be None. `Bcast(buf, root)` gives every rank what the root has: here all ranks need an array of the
# full size, the others to receive it. Predict what each rank has at the end.

# %% Deal out and collect
# %%px
cards = np.arange(8) if rank == 0 else None
hand = np.empty(2, int)
comm.Scatter(cards, hand, root=0)
hand = hand * (rank + 1)
table = np.empty(8, int) if rank == 0 else None
comm.Gather(hand, table, root=0)
in_the_end = table if rank == 0 else hand

# %% Draw the cards tags=["folded", "slide"]
start = [np.arange(8) if r == 0 else np.empty(0) for r in range(4)]
plots.exchange(start, ranks.pull("in_the_end"), "Scattered, multiplied by rank + 1, gathered on rank 0")

# %% [markdown] tags=["slide-50"]
# ## Your turn: by row
#
# This is case 1: A is sharded by rows, and B is replicated. An array must be contiguous in memory to be sent. A block of rows of a matrix
# already is.


# %% Exercise: par_matmul_by_row tags=["exercise", "slide-50"]
# %%px
def par_matmul_by_row(A, B):
    """Multiply A by B: broadcast B, scatter the rows of A, gather the rows of C.

    A rank multiplies its rows of A by B. Rank 0 sends B and three quarters of A, the
    others B at most once, and their parts of C; 1,000 bytes may come on top.

    Parameters
    ----------
    A, B : numpy.ndarray or None
        On rank 0: float64, C-contiguous, not changed, shapes ``(m, k)`` and ``(k, n)``;
        the number of ranks divides m. None on the other ranks; `sizes` gives you m, k
        and n. As in ``A @ B``, 0 times infinity is NaN.

    Returns
    -------
    C : numpy.ndarray or None
        The product, ``(m, n)``, a new array on rank 0; None on the other ranks.
    """
    ### BEGIN SOLUTION
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A, rows, root=0)
    C = np.empty((m, n)) if rank == 0 else None
    comm.Gather(rows @ B, C, root=0)
    return C
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: by reduction
#
# This is case 3. Columns are not contiguous. How can you make them so?


# %% Exercise: par_matmul_by_reduction tags=["exercise", "slide-50"]
# %%px
def par_matmul_by_reduction(A, B):
    """Multiply A by B: scatter the columns of A and the rows of B, sum the products.

    Each rank multiplies its parts; the sum is over all ranks. A rank sends what an
    all-reduce of C does, rank 0 also three quarters of A and B; 1,000 bytes may come
    on top.

    Parameters
    ----------
    A, B : numpy.ndarray or None
        As for `par_matmul_by_row`, but here the number of ranks divides k.

    Returns
    -------
    C : numpy.ndarray
        The product, ``(m, n)``, a new array on every rank.
    """
    ### BEGIN SOLUTION
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    comm.Scatter(np.ascontiguousarray(A.T) if rank == 0 else None, columns, root=0)
    comm.Scatter(B, rows, root=0)
    C = np.empty((m, n))
    comm.Allreduce(columns.T @ rows, C)
    return C
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?

# %% Check: by row tags=["given"]
check = MatmulCheck("par_matmul_by_row", ranks)
check.product(8, 8, 8).product(40, 30, 50).passed()

# %% Check: by reduction tags=["given"]
check = MatmulCheck("par_matmul_by_reduction", ranks)
check.product(8, 8, 8).product(30, 40, 50).passed()

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# What does each rank send with either method? Change the sizes: which method would you choose for a tall A and a small B, and which for a
# short, wide A? (A broadcast goes along the ring: each rank but the last passes the array on. A scatter is counted as sent by the root, a
# gather as sent by all the other ranks.)

# %% Count the bytes tags=["folded"]
m, k, n = 1024, 1024, 1024  # A is m x k, B is k x n; 4 must divide m and k
random = np.random.default_rng(0)
A, B = random.standard_normal((m, k)), random.standard_normal((k, n))
inputs, moved = [dict(A=A, B=B)] + [dict(A=None, B=None)] * 3, {}
for function in ("par_matmul_by_row", "par_matmul_by_reduction"):
    ranks.call(function, inputs)
    moved[function] = ranks.traffic
labels = [f"{name[11:].replace('_', ' ')}, rank {r}" for name in moved for r in range(4)]
plots.traffic([entries for each in moved.values() for entries in each], f"Bytes each rank sends, {m} x {k} x {n}", labels)


# %% Time both tags=["folded", "slide-50"]
def seconds(function, A, B):
    """Return how long the call takes on this rank: the best of three runs."""
    import time

    taken = []
    for _ in range(3):
        comm.Barrier()
        began = time.perf_counter()
        globals()[function](A, B) if function else (A @ B if rank == 0 else None)
        taken.append(time.perf_counter() - began)
    return min(taken)


timed = {name: max(ranks.call(seconds, [i | dict(function=name) for i in inputs])) for name in (*moved, "")}
labels = {"par_matmul_by_row": "by row, 4 ranks", "par_matmul_by_reduction": "by reduction, 4 ranks", "": "rank 0 alone"}
plots.bars({labels[name]: 1e3 * s for name, s in timed.items()}, f"A product of {m} x {k} and {k} x {n} on this machine", "ms")

# %% [markdown]
# Four ranks help only if there are cores for them, and the messages cost time in any case.

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - **PyTorch**: `torch/distributed/tensor/_ops/_einsum_strategy.py` has these rules for `DTensor`s: both sharded along the contracted
#   dimension give `Partial()`. In cases 2 and 4 it redistributes an argument, in the way that its estimate says is cheapest.
# - **JAX**: arrays carry a `NamedSharding`, and under `jax.jit` the compiler adds the collectives. The four cases and their costs are in
#   "How to Scale Your Model", part 3 (Austin et al., 2025), where each mesh axis has a name and $A[I_X, J]$ says that dimension I is
#   sharded on X.
# - **Megatron-LM**: `ColumnParallelLinear` is case 1, `RowParallelLinear` case 3 (`megatron/core/tensor_parallel/layers.py`).
# - Our two functions begin with whole matrices on rank 0, as PyTorch's `distribute_tensor` does. A model is usually sharded from the start.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. On a machine with four cores, how large must the matrices be for the four ranks to win? Which grows faster, the work or the traffic?
# 2. Parts 03 to 06 split a layer by the columns or by the rows of its weight. Which of the four cases is each of their products, forward
#    and backward? In case 2, when is it cheaper to slice the replicated matrix and sum than to gather the sharded one?
#
# The last cell stops the ranks.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, including 1024³, and check what is sent.

# %% Test: par_matmul_by_row tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = MatmulCheck("par_matmul_by_row", ranks, show=False)
check = check.drawn().product(4, 61, 63, look=True).product(1024, 1024, 1024, look=True)
check = check.in_turn(8, 8, 8).in_turn(8, 1, 1)
### END HIDDEN TESTS

# %% Test: par_matmul_by_reduction tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = MatmulCheck("par_matmul_by_reduction", ranks, show=False)
check = check.drawn().product(61, 4, 63, look=True).product(1024, 1024, 1024, look=True)
check = check.in_turn(8, 8, 8).in_turn(1, 8, 1)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
