"""Answers to part 11: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right


@loses(5)
def par_matmul_by_row__alone(A, B):
    """Rank 0 does it all."""
    return A @ B if rank == 0 else None


@loses(5)
@changes(
    "C = np.empty((m, n)) if rank == 0 else None",
    "C = np.empty((m, n))",
    "comm.Gather(rows @ B, C, root=0)",
    "comm.Allgather(rows @ B, C)",
)
def par_matmul_by_row__everywhere():
    """The product on every rank."""


@loses(5)
@changes(
    "    comm.Scatter(A, rows, root=0)",
    """
    A = np.ascontiguousarray(A) if rank == 0 else np.empty((m, k))
    comm.Bcast(A, root=0)
    rows[:] = A[rank * m // size : (rank + 1) * m // size]""",
)
def par_matmul_by_row__broadcasts_both():
    """Broadcasts A as well."""


@loses(5)
@changes(
    "comm.Scatter(A, rows, root=0)",
    "comm.Scatter(A[::-1].copy() if rank == 0 else None, rows, root=0)",
    "comm.Gather(rows @ B, C, root=0)",
    "comm.Gather(rows @ B.T if k == n else rows @ B, C, root=0)",
)
def par_matmul_by_row__transposed():
    """Multiplies by the transpose."""


@loses(5)
@changes("rows @ B", "(rows.astype(np.float32) @ B.astype(np.float32)).astype(float)")
def par_matmul_by_row__float32():
    """In half the memory."""


@loses(5)
@changes(
    "C = np.empty((m, n)) if rank == 0 else None",
    "C = np.empty((m, n)) if rank == size - 1 else None",
    "comm.Gather(rows @ B, C, root=0)",
    "comm.Gather(rows @ B, C, root=size - 1)",
)
def par_matmul_by_row__wrong_root():
    """Gathers on the last rank."""


@loses(5)
@changes("comm.Bcast(B, root=0)", "B[:] = B if rank == 0 else 1.0")
def par_matmul_by_row__no_broadcast():
    """The others never get B."""


@loses(5)
@changes("rows @ B", "np.vstack([rows[:-1] @ B, np.zeros((1, n))])")
def par_matmul_by_row__one_row_short():
    """Leaves out the last row of each part."""


@loses(5)
@changes(
    "    comm.Bcast(B, root=0)",
    """
    if rank == 0:
        comm.Bcast(B, root=0)""",
)
def par_matmul_by_row__deadlock():
    """Only rank 0 broadcasts."""


@right
@changes("rows @ B", "np.ascontiguousarray(np.stack([rows @ B[:, j] for j in range(n)], axis=1))")
def par_matmul_by_row__column_by_column():
    """The part of the product a column at a time."""


@right
@changes(
    "comm.Scatter(A, rows, root=0)",
    "comm.Scatter(A.ravel() if rank == 0 else None, rows.reshape(-1), root=0)",
    "comm.Gather(rows @ B, C, root=0)",
    "comm.Gather((rows @ B).ravel(), None if C is None else C.reshape(-1), root=0)",
)
def par_matmul_by_row__flat_buffers():
    """Everything sent as flat arrays."""


@loses(5)
def par_matmul_by_reduction__alone(A, B):
    """Rank 0 does it all, and tells the others."""
    m, k, n = sizes(A, B)
    C = A @ B if rank == 0 else np.empty((m, n))
    comm.Bcast(C, root=0)
    return C


@loses(5)
@changes("return C", "return C if rank == 0 else None")
def par_matmul_by_reduction__only_on_rank_0():
    """The sum on rank 0 alone."""


@loses(5)
def par_matmul_by_reduction__broadcasts(A, B):
    """Broadcasts both matrices, and cuts them then."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    A = np.ascontiguousarray(A) if rank == 0 else np.empty((m, k))
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(A, root=0)
    comm.Bcast(B, root=0)
    columns[:] = A.T[rank * k // size : (rank + 1) * k // size]
    rows[:] = B[rank * k // size : (rank + 1) * k // size]
    C = np.empty((m, n))
    comm.Allreduce(columns.T @ rows, C)
    return C


@loses(5)
@changes("np.ascontiguousarray(A.T)", "A")
def par_matmul_by_reduction__rows_as_columns():
    """Scatters A as it lies, and takes the parts for columns."""


@loses(5)
@changes("np.ascontiguousarray(A.T)", "A.T")
def par_matmul_by_reduction__a_view():
    """Sends a view of the columns."""


@loses(5)
@changes(
    "    comm.Allreduce(columns.T @ rows, C)",
    """
    C = columns.T @ rows
    comm.Allreduce(columns.T @ rows, np.empty((m, n)))""",
)
def par_matmul_by_reduction__own_part():
    """Returns its own summand."""


@loses(5)
@changes("return C", "return C / size")
def par_matmul_by_reduction__mean():
    """The mean instead of the sum."""


@loses(5)
@changes("comm.Allreduce(columns.T @ rows, C)", 'comm.Allreduce(columns.T @ rows, C, __import__("mpi4py.MPI").MPI.MAX)')
def par_matmul_by_reduction__largest():
    """The largest instead of the sum."""


@loses(5)
def par_matmul_by_reduction__halves_that_fit(A, B):
    """Reduce-scatter and all-gather: right where the ranks divide the product."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    comm.Scatter(np.ascontiguousarray(A.T) if rank == 0 else None, columns, root=0)
    comm.Scatter(B, rows, root=0)
    mine, C = np.empty(m * n // size), np.empty((m, n))
    comm.Reduce_scatter(columns.T @ rows, mine)
    comm.Allgather(mine, C)
    return C


@right
def par_matmul_by_reduction__parts_in_a_stack(A, B):
    """Cuts A into a stack of parts first."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((m, k // size)), np.empty((k // size, n))
    comm.Scatter(np.stack(np.split(A, size, axis=1)) if rank == 0 else None, columns, root=0)
    columns = columns.T
    comm.Scatter(B, rows, root=0)
    C = np.empty((m, n))
    comm.Allreduce(columns.T @ rows, C)
    return C


@right
def par_matmul_by_reduction__in_place(A, B):
    """Sums in place."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    comm.Scatter(np.ascontiguousarray(A.T) if rank == 0 else None, columns, root=0)
    comm.Scatter(B, rows, root=0)
    from mpi4py import MPI

    C = columns.T @ rows
    comm.Allreduce(MPI.IN_PLACE, C)
    return C


@loses(5)
def par_matmul_by_row__squeezes(A, B):
    """Loses an axis of size one."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A, rows, root=0)
    C = np.empty((m, n)) if rank == 0 else None
    comm.Gather(rows @ B, C, root=0)
    return None if C is None else C.squeeze()


@loses(5)
def par_matmul_by_reduction__vectors_lose_an_axis(A, B):
    """Loses an axis of size one."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    comm.Scatter(np.ascontiguousarray(A.T) if rank == 0 else None, columns, root=0)
    comm.Scatter(B, rows, root=0)
    C = np.empty((m, n))
    comm.Allreduce(np.ascontiguousarray(columns.T @ rows).squeeze(), C.squeeze())
    return C.squeeze()


@loses(5)
def par_matmul_by_row__writes_C_into_A(A, B):
    """Overwrites A."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A, rows, root=0)
    C = None if rank else A if n == k else np.empty((m, n))
    comm.Gather(rows @ B, C, root=0)
    return C


@right
def par_matmul_by_row__messages(A, B):
    """Sends rows and parts of the product as messages, in any order."""
    m, k, n = sizes(A, B)
    own = [slice(r * m // size, (r + 1) * m // size) for r in range(size)]
    B = B if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    if rank > 0:
        rows = np.empty((m // size, k))
        comm.Recv(rows, source=0)
        comm.Send(rows @ B, dest=0)
        return None
    sent = [comm.Isend(A[own[r]], dest=r) for r in reversed(range(1, size))]
    C = np.empty((m, n))
    np.matmul(A[own[0]], B, out=C[own[0]])
    for r in range(1, size):
        comm.Recv(C[own[r]], source=r)
    for request in sent:
        request.Wait()
    return C


@loses(5)
@changes("comm.Allreduce(", "comm.Allreduce(np.nan_to_num(columns.T @ rows), C) if True else (")
def par_matmul_by_reduction__no_nan():
    """Makes numbers of NaN and infinities."""


@loses(5)
@changes(
    "return C",
    """comm.Ibarrier()
    return C""",
)
def par_matmul_by_row__open_request():
    """Starts a barrier, and does not wait for it."""


@loses(5)
@changes("rows @ B", "rows @ B if rows.any() else np.zeros((m // size, n))")
def par_matmul_by_row__skips_rows_of_zeros():
    """Does not multiply rows that are all zero."""


@loses(5)
@changes("rows @ B", "rows @ B if B.any() else np.zeros((m // size, n))")
def par_matmul_by_row__skips_a_matrix_of_zeros():
    """Does not multiply by a matrix that is all zero."""


@loses(5)
@changes("    comm.Gather(rows @ B, C, root=0)", "    comm.Gather(np.nan_to_num(rows) @ np.nan_to_num(B), C, root=0)")
def par_matmul_by_row__no_nan():
    """Makes numbers of NaN and infinities."""


@loses(5)
@changes("columns.T @ rows, C", "columns.T @ rows if columns.any() else np.zeros((m, n)), C")
def par_matmul_by_reduction__skips_columns_of_zeros():
    """Does not multiply columns that are all zero."""


@loses(5)
@changes("columns.T @ rows, C", "columns.T @ rows if rows.any() else np.zeros((m, n)), C")
def par_matmul_by_reduction__skips_rows_of_zeros():
    """Does not multiply by rows that are all zero."""


@right
@changes("columns.T @ rows, C", "sum(np.outer(column, row) for column, row in zip(columns, rows)), C")
def par_matmul_by_reduction__outer_products():
    """Adds up the outer products of columns and rows."""


@right
@changes("columns.T @ rows, C", 'np.einsum("km,kn->mn", columns, rows), C')
def par_matmul_by_reduction__einsum():
    """With einsum."""
