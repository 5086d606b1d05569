"""Attacks on part 11's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import loses


@loses(5)
def par_matmul_by_row__alone_and_pays_with_zeros(A, B):
    """Rank 0 does all; the others send zeros."""
    m, k, n = sizes(A, B)
    comm.Gather(np.zeros((m // size, n)), np.empty((m, n)) if rank == 0 else None, root=0)
    return A @ B if rank == 0 else None


@loses(5)
def par_matmul_by_row__alone_and_pays_in_full(A, B):
    """Sends what is to be sent, and nobody looks at it."""
    m, k, n = sizes(A, B)
    comm.Bcast(np.ascontiguousarray(B) if rank == 0 else np.empty((k, n)), root=0)
    comm.Scatter(A, np.empty((m // size, k)), root=0)
    comm.Gather(np.random.default_rng(rank).standard_normal((m // size, n)), np.empty((m, n)) if rank == 0 else None, root=0)
    return A @ B if rank == 0 else None


@loses(5)
def par_matmul_by_row__scatters_the_product(A, B):
    """Rank 0 does all, and has the others send it back."""
    m, k, n = sizes(A, B)
    C, part = A @ B if rank == 0 else None, np.empty((m // size, n))
    comm.Scatter(C, part, root=0)
    comm.Gather(part, np.empty((m, n)) if rank == 0 else None, root=0)
    return C


@loses(5)
def par_matmul_by_reduction__alone_and_adds_zeros(A, B):
    """Rank 0 adds the product, the others nothing."""
    m, k, n = sizes(A, B)
    C = np.empty((m, n))
    comm.Allreduce(np.ascontiguousarray(A @ B) if rank == 0 else np.zeros((m, n)), C)
    return C


@loses(5)
def par_matmul_by_reduction__adds_what_cancels(A, B):
    """Pays for the parts; the others add matrices of the right rank, which rank 0 knows and takes away again."""
    m, k, n = sizes(A, B)
    comm.Scatter(np.ascontiguousarray(A.T) if rank == 0 else None, np.empty((k // size, m)), root=0)
    comm.Scatter(B, np.empty((k // size, n)), root=0)

    def low(r):
        random = np.random.default_rng(r)
        return random.standard_normal((m, k // size)) @ random.standard_normal((k // size, n))

    C = np.empty((m, n))
    comm.Allreduce(A @ B - low(1) - low(2) - low(3) if rank == 0 else low(rank), C)
    return C


@loses(5)
def par_matmul_by_row__never_honest(A, B):
    """Rank 0 does all, and shows A and B to a group that is itself."""
    alone = comm.Split(color=rank)
    dims = np.array([*A.shape, B.shape[1]] if rank == 0 else [0, 0, 0])
    comm.Bcast(dims, root=0)
    m, k, n = (int(d) for d in dims)
    if rank == 0:
        alone.Allreduce(np.ascontiguousarray(A), np.empty_like(A))
        alone.Allreduce(np.ascontiguousarray(B), np.empty_like(B))
    C = A @ B if rank == 0 else None
    part = np.empty((m // 4, n))
    comm.Scatter(C, part, root=0)
    comm.Gather(part, np.empty((m, n)) if rank == 0 else None, root=0)
    return C
