"""Answers to part 11: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import loses, right


@loses(5)
def par_matmul_by_row__alone(A, B):
    """Rank 0 does it all."""
    return A @ B if rank == 0 else None


@loses(5)
def par_matmul_by_row__everywhere(A, B):
    """The product on every rank."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A, rows, root=0)
    C = np.empty((m, n))
    comm.Allgather(rows @ B, C)
    return C


@loses(5)
def par_matmul_by_row__broadcasts_both(A, B):
    """Broadcasts A as well."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    A = np.ascontiguousarray(A) if rank == 0 else np.empty((m, k))
    comm.Bcast(A, root=0)
    rows[:] = A[rank * m // size : (rank + 1) * m // size]
    C = np.empty((m, n)) if rank == 0 else None
    comm.Gather(rows @ B, C, root=0)
    return C


@loses(5)
def par_matmul_by_row__transposed(A, B):
    """Multiplies by the transpose."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A[::-1].copy() if rank == 0 else None, rows, root=0)
    C = np.empty((m, n)) if rank == 0 else None
    comm.Gather(rows @ B.T if k == n else rows @ B, C, root=0)
    return C


@loses(5)
def par_matmul_by_row__float32(A, B):
    """In half the memory."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A, rows, root=0)
    C = np.empty((m, n)) if rank == 0 else None
    comm.Gather((rows.astype(np.float32) @ B.astype(np.float32)).astype(float), C, root=0)
    return C


@loses(5)
def par_matmul_by_row__wrong_root(A, B):
    """Gathers on the last rank."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A, rows, root=0)
    C = np.empty((m, n)) if rank == size - 1 else None
    comm.Gather(rows @ B, C, root=size - 1)
    return C


@loses(5)
def par_matmul_by_row__no_broadcast(A, B):
    """The others never get B."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    B[:] = B if rank == 0 else 1.0
    rows = np.empty((m // size, k))
    comm.Scatter(A, rows, root=0)
    C = np.empty((m, n)) if rank == 0 else None
    comm.Gather(rows @ B, C, root=0)
    return C


@loses(5)
def par_matmul_by_row__one_row_short(A, B):
    """Leaves out the last row of each part."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A, rows, root=0)
    C = np.empty((m, n)) if rank == 0 else None
    comm.Gather(np.vstack([rows[:-1] @ B, np.zeros((1, n))]), C, root=0)
    return C


@loses(5)
def par_matmul_by_row__deadlock(A, B):
    """Only rank 0 broadcasts."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    if rank == 0:
        comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A, rows, root=0)
    C = np.empty((m, n)) if rank == 0 else None
    comm.Gather(rows @ B, C, root=0)
    return C


@right
def par_matmul_by_row__column_by_column(A, B):
    """The part of the product a column at a time."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A, rows, root=0)
    C = np.empty((m, n)) if rank == 0 else None
    comm.Gather(np.ascontiguousarray(np.stack([rows @ B[:, j] for j in range(n)], axis=1)), C, root=0)
    return C


@right
def par_matmul_by_row__flat_buffers(A, B):
    """Everything sent as flat arrays."""
    m, k, n = sizes(A, B)
    B = np.ascontiguousarray(B) if rank == 0 else np.empty((k, n))
    comm.Bcast(B, root=0)
    rows = np.empty((m // size, k))
    comm.Scatter(A.ravel() if rank == 0 else None, rows.reshape(-1), root=0)
    C = np.empty((m, n)) if rank == 0 else None
    comm.Gather((rows @ B).ravel(), None if C is None else C.reshape(-1), root=0)
    return C


@loses(5)
def par_matmul_by_reduction__alone(A, B):
    """Rank 0 does it all, and tells the others."""
    m, k, n = sizes(A, B)
    C = A @ B if rank == 0 else np.empty((m, n))
    comm.Bcast(C, root=0)
    return C


@loses(5)
def par_matmul_by_reduction__only_on_rank_0(A, B):
    """The sum on rank 0 alone."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    comm.Scatter(np.ascontiguousarray(A.T) if rank == 0 else None, columns, root=0)
    comm.Scatter(B, rows, root=0)
    C = np.empty((m, n))
    comm.Allreduce(columns.T @ rows, C)
    return C if rank == 0 else None


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
def par_matmul_by_reduction__rows_as_columns(A, B):
    """Scatters A as it lies, and takes the parts for columns."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    comm.Scatter(A if rank == 0 else None, columns, root=0)
    comm.Scatter(B, rows, root=0)
    C = np.empty((m, n))
    comm.Allreduce(columns.T @ rows, C)
    return C


@loses(5)
def par_matmul_by_reduction__a_view(A, B):
    """Sends a view of the columns."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    comm.Scatter(A.T if rank == 0 else None, columns, root=0)
    comm.Scatter(B, rows, root=0)
    C = np.empty((m, n))
    comm.Allreduce(columns.T @ rows, C)
    return C


@loses(5)
def par_matmul_by_reduction__own_part(A, B):
    """Returns its own summand."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    comm.Scatter(np.ascontiguousarray(A.T) if rank == 0 else None, columns, root=0)
    comm.Scatter(B, rows, root=0)
    C = np.empty((m, n))
    C = columns.T @ rows
    comm.Allreduce(columns.T @ rows, np.empty((m, n)))
    return C


@loses(5)
def par_matmul_by_reduction__mean(A, B):
    """The mean instead of the sum."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    comm.Scatter(np.ascontiguousarray(A.T) if rank == 0 else None, columns, root=0)
    comm.Scatter(B, rows, root=0)
    C = np.empty((m, n))
    comm.Allreduce(columns.T @ rows, C)
    return C / size


@loses(5)
def par_matmul_by_reduction__largest(A, B):
    """The largest instead of the sum."""
    m, k, n = sizes(A, B)
    columns, rows = np.empty((k // size, m)), np.empty((k // size, n))
    comm.Scatter(np.ascontiguousarray(A.T) if rank == 0 else None, columns, root=0)
    comm.Scatter(B, rows, root=0)
    C = np.empty((m, n))
    comm.Allreduce(columns.T @ rows, C, __import__("mpi4py.MPI").MPI.MAX)
    return C


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
