# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 11 A matrix product on four ranks
#
# **You will build** `par_matmul_by_row` and `par_matmul_by_reduction`: two ways to split the work of a single product $C = A B$.
#
# *{points} points. About 35 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check import Check

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
# ## A worked example: collectives with a root
#
# `Bcast(buf, root)` gives every rank what the root has. `Scatter(sendbuf, recvbuf, root)` deals out equal parts, and
# `Gather(sendbuf, recvbuf, root)` collects them again. Only the root needs the full array; on the other ranks it can be None. Predict what
# each rank has at the end.

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
# An array must be contiguous in memory to be sent. A block of rows of a matrix already is.


# %% Exercise: par_matmul_by_row tags=["exercise", "slide-50"]
# %%px
def par_matmul_by_row(A, B):
    """Multiply A by B: broadcast B, scatter the rows of A, gather the rows of C.

    Parameters
    ----------
    A, B : numpy.ndarray or None
        On rank 0: float64, shapes ``(m, k)`` and ``(k, n)``; the number of ranks
        divides m. None on the other ranks; `sizes` gives you m, k and n.

    Returns
    -------
    C : numpy.ndarray or None
        The product, ``(m, n)``, on rank 0; None on the other ranks.
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
# Columns are not contiguous. How can you make them so?


# %% Exercise: par_matmul_by_reduction tags=["exercise", "slide-50"]
# %%px
def par_matmul_by_reduction(A, B):
    """Multiply A by B: scatter the columns of A and the rows of B, sum the products.

    Each rank multiplies its parts; the sum is over all ranks.

    Parameters
    ----------
    A, B : numpy.ndarray or None
        As for `par_matmul_by_row`, but here the number of ranks divides k.

    Returns
    -------
    C : numpy.ndarray
        The product, ``(m, n)``, on every rank.
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


# %% A comparison with one process tags=["given"]
def numbers(check, m, k, n):
    check.case = f"A {m} x {k}, B {k} x {n}"
    return check.random.standard_normal((m, k)), check.random.standard_normal((k, n))


def examine(check, function, A, B, keep=False):
    """Call the function with A and B on rank 0; check the product and what each rank sent."""
    (m, k), n = A.shape, B.shape[1]
    answers = ranks.call(function, [dict(A=A, B=B)] + [dict(A=None, B=None)] * 3, show=check.show, keep=keep)
    by_row, want, scale = function == "par_matmul_by_row", A @ B, float(np.abs(A).max() * np.abs(B).max() * k)
    cut = "a piece of the transposed A that was not transposed back before the product"
    cause = "parts in the wrong order" if by_row else f"columns of A that were not made contiguous before they were sent, or {cut}"
    for r, (answer, moved) in enumerate(zip(answers, ranks.traffic, strict=True)):
        if by_row and r:
            if answer is not None:
                check.fail(f"the result on rank {r} must be None", "a Gather with another rank as root, or an Allgather")
        else:
            own = slice(r * k // 4, (r + 1) * k // 4)
            known = None if by_row or k % 4 else {"this rank's own summand": A[:, own] @ B[own]}
            check.array(answer, want, name="the product", rank=r, rtol=1e-13, scale=scale, cause=cause, instead=known)
        if by_row:
            least = 0 if r == 0 else 8 * m * n / 4
            most = 8 * (k * n + m * k * 3 / 4) if r == 0 else 8 * (k * n * (r < 3) + m * n / 4)
        else:
            least = 8 * m * n
            most = 8 * (1.5 * m * n + (m * k + k * n) * 3 / 4 * (r == 0))
        check.sent(moved, most + 1000, name=function, rank=r, cause="whole matrices are sent where parts would do")
        if sum(payload for *_, payload in moved) < least:
            check.fail(f"rank {r} sent less than its part of the product", "rank 0 does all the work")
        if keep and r == 0:
            check.among(ranks.arrays[0], A, 3 / 4, name="A", rank=0, cause="rank 0 does all the work")
            check.among(ranks.arrays[0], B, 1 if by_row else 3 / 4, name="B", rank=0, cause="rank 0 does all the work")
        if keep and by_row and r:
            check.among(ranks.arrays[r], want[m * r // 4 : m * (r + 1) // 4], name="its part", rank=r, cause="rank 0 does all the work")
        if keep and not by_row and ranks.arrays[r] is not None and k // 4 < min(m, n):
            sent = np.concatenate([a.ravel() for a in ranks.arrays[r]])
            summed = [a for a in ranks.arrays[r] if a.size == m * n] or [sent[-m * n :]]  # it may be sent in pieces
            if not any(np.linalg.matrix_rank(a.reshape(-1, n)) == k // 4 for a in summed if a.size == m * n):
                check.fail(f"rank {r} did not contribute the product of its columns and rows", "rank 0 does all the work")


# %% Check: by row tags=["given"]
check = Check("par_matmul_by_row")
examine(check, "par_matmul_by_row", *numbers(check, 8, 8, 8))
examine(check, "par_matmul_by_row", *numbers(check, 40, 30, 50))
check.passed()

# %% Check: by reduction tags=["given"]
check = Check("par_matmul_by_reduction")
examine(check, "par_matmul_by_reduction", *numbers(check, 8, 8, 8))
examine(check, "par_matmul_by_reduction", *numbers(check, 30, 40, 50))
check.passed()

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# A product of two 1024 x 1024 matrices: what does each rank send with either method? Which method would you choose for a tall A and a small
# B, and which for a short, wide A? (A broadcast goes along the ring: each rank but the last passes the array on. A scatter is counted as
# sent by the root, a gather as sent by all the other ranks.)

# %% Count the bytes tags=["folded"]
A, B = np.random.default_rng(0).standard_normal((2, 1024, 1024))
inputs, moved = [dict(A=A, B=B)] + [dict(A=None, B=None)] * 3, {}
for function in ("par_matmul_by_row", "par_matmul_by_reduction"):
    ranks.call(function, inputs)
    moved[function] = ranks.traffic
labels = [f"{name[11:].replace('_', ' ')}, rank {r}" for name in moved for r in range(4)]
plots.traffic([entries for each in moved.values() for entries in each], "Bytes each rank sends, 1024 x 1024 x 1024", labels)


# %% Time both tags=["folded", "slide-50"]
def seconds(function, A, B):
    """Return how long the call takes on this rank, as the best of three runs."""
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
plots.bars({labels[name]: 1e3 * s for name, s in timed.items()}, "A product of 1024 x 1024 matrices on this machine", "ms")

# %% [markdown] tags=["slide"]
# Four ranks help only if there are cores for them, and the messages cost time in any case.
#
# ## Questions worth arguing about
#
# 1. On a machine with four cores, how large must the matrices be for the four ranks to win? Which grows faster, the work or the traffic?
# 2. If you did parts 03 to 06, you saw a layer split by the columns or by the rows of its weight. Which of these splits does each of the
#    two products here correspond to?
#
# The last cell stops the ranks.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, including 1024³, and check what is sent.

# %% Test: par_matmul_by_row tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = Check("par_matmul_by_row", show=False)
for _ in range(4):
    m, k, n = check.sizes(3, 20, 90)
    examine(check, "par_matmul_by_row", *numbers(check, 4 * m, k, n), keep=True)
examine(check, "par_matmul_by_row", *numbers(check, 4, 61, 63), keep=True)
examine(check, "par_matmul_by_row", *numbers(check, 1024, 1024, 1024))
### END HIDDEN TESTS

# %% Test: par_matmul_by_reduction tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = Check("par_matmul_by_reduction", show=False)
for _ in range(4):
    m, k, n = check.sizes(3, 20, 90)
    examine(check, "par_matmul_by_reduction", *numbers(check, m, 4 * k, n), keep=True)
examine(check, "par_matmul_by_reduction", *numbers(check, 61, 4, 63), keep=True)
examine(check, "par_matmul_by_reduction", *numbers(check, 1024, 1024, 1024))
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
