"""Answers to part 03: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right


@loses(9)
def naive_collect_forward_input__parts_below_each_other(x, mp_comm, mp_size):
    """Takes the memory that MPI delivers for the array itself."""
    collected = np.empty((len(x), x.shape[1] * mp_size), x.dtype)
    mp_comm.Allgather(x, collected)
    return collected


@loses(9)
@changes("return np.concatenate(list(parts), axis=1)", "return np.concatenate(list(parts), axis=0)")
def naive_collect_forward_input__stacked_rows():
    """Concatenates along the batch."""


@loses(6)
def naive_collect_forward_input__float64(x, mp_comm, mp_size):
    """np.empty without a dtype: float64, whatever came in."""
    parts = np.empty((mp_size, *x.shape))
    mp_comm.Allgather(x.astype(np.float64), parts)
    return np.concatenate(list(parts), axis=1)


@loses(6)
def naive_collect_forward_input__padded_all_reduce(x, mp_comm, mp_size):
    """Right values, at twice the traffic."""
    width = x.shape[1]
    whole, out = np.zeros((len(x), width * mp_size), x.dtype), np.empty((len(x), width * mp_size), x.dtype)
    start = mp_comm.Get_rank() * width
    whole[:, start : start + width] = x
    mp_comm.Allreduce(whole, out)
    return out


@loses(6)
def naive_collect_forward_input__column_order(x, mp_comm, mp_size):
    """Gathers the transpose and returns a view of it: right values, Fortran order."""
    parts = np.empty((mp_size * x.shape[1], len(x)), x.dtype)
    mp_comm.Allgather(np.ascontiguousarray(x.T), parts)
    return parts.T


@loses(9)
def naive_collect_forward_input__own_part_only(x, mp_comm, mp_size):
    """Sends nothing."""
    return x


@loses(9)
@changes("return np.concatenate(list(parts), axis=1)", "return np.concatenate(list(parts[::-1]), axis=1)")
def naive_collect_forward_input__reversed():
    """Puts the last rank first."""


@loses(9)
@changes("return np.concatenate(list(parts), axis=1)", "return np.ascontiguousarray(parts.transpose(1, 2, 0)).reshape(len(x), -1)")
def naive_collect_forward_input__interleaved():
    """Mixes the columns of the ranks."""


@loses(6)
def naive_collect_forward_input__clobbers(x, mp_comm, mp_size):
    """Writes into its argument after the call."""
    parts = np.empty((mp_size, *x.shape), x.dtype)
    mp_comm.Allgather(x, parts)
    x[:] = 0
    return np.concatenate(list(parts), axis=1)


@right
def naive_collect_forward_input__transposes(x, mp_comm, mp_size):
    """Gathers the transposes: then the parts do lie as they should."""
    parts = np.empty((mp_size * x.shape[1], x.shape[0]), x.dtype)
    mp_comm.Allgather(np.ascontiguousarray(x.T), parts)
    return parts.T.copy()


@right
def naive_collect_forward_input__hstack_flat(x, mp_comm, mp_size):
    """A flat buffer, cut afterwards."""
    flat = np.empty(x.size * mp_size, dtype=x.dtype)
    mp_comm.Allgather(x.ravel(), flat)
    return np.hstack([piece.reshape(x.shape) for piece in np.split(flat, mp_size)])


@loses(9)
def naive_collect_forward_output__parts_below_each_other(out, mp_comm, mp_size):
    """Takes the memory that MPI delivers for the array itself."""
    collected = np.empty((out.shape[0], out.shape[1] * mp_size), out.dtype)
    mp_comm.Allgather(out, collected)
    return collected


@loses(9)
def naive_collect_forward_output__sums(out, mp_comm, mp_size):
    """Adds up what belongs side by side."""
    total = np.empty_like(out)
    mp_comm.Allreduce(out, total)
    return total


@loses(9)
def naive_collect_forward_output__first_rank_only(out, mp_comm, mp_size):
    """Returns the result on the first rank of the group, and None elsewhere."""
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    if mp_comm.Get_rank() == 0:
        return np.concatenate(list(parts), axis=1)


@loses(9)
def naive_collect_forward_output__four_ranks(out, mp_comm, mp_size):
    """A group size that is written into the function."""
    parts = np.empty((4, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    return np.concatenate(list(parts), axis=1)


@loses(6)
def naive_collect_forward_output__gathers_twice(out, mp_comm, mp_size):
    """Sends everything two times."""
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    mp_comm.Allgather(out, parts)
    return np.concatenate(list(parts), axis=1)


@loses(9)
def naive_collect_forward_output__deadlock(out, mp_comm, mp_size):
    """Only the first rank of a group gathers."""
    parts = np.empty((mp_size, *out.shape), out.dtype)
    if mp_comm.Get_rank() == 0:
        mp_comm.Allgather(out, parts)
    return np.concatenate(list(parts), axis=1)


@loses(9)
def naive_collect_forward_output__float32(out, mp_comm, mp_size):
    """Always float32."""
    parts = np.empty((mp_size, *out.shape), np.float32)
    mp_comm.Allgather(out.astype(np.float32), parts)
    return np.concatenate(list(parts), axis=1).astype(out.dtype)


@loses(6)
def naive_collect_forward_output__copy_keeps_the_order(out, mp_comm, mp_size):
    """np.copy of a transpose, which stays in Fortran order."""
    parts = np.empty((mp_size * out.shape[1], len(out)), out.dtype)
    mp_comm.Allgather(np.ascontiguousarray(out.T), parts)
    return np.copy(parts.T)


@right
def naive_collect_forward_output__the_sender_rearranges(out, mp_comm, mp_size):
    """Sends the transpose, so that MPI's order is the right one; one copy at the end."""
    parts = np.empty((mp_size * out.shape[1], len(out)), out.dtype)
    mp_comm.Allgather(np.ascontiguousarray(out.T), parts)
    return parts.T.copy()


@right
def naive_collect_forward_output__as_in_the_first_function(out, mp_comm, mp_size):
    """The first exercise's answer."""
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    return np.concatenate(list(parts), axis=1)


@right
def naive_collect_forward_output__row_by_row(out, mp_comm, mp_size):
    """One all-gather for each sample: many calls, the same bytes."""
    collected = np.empty((out.shape[0], out.shape[1] * mp_size), out.dtype)
    for i in range(len(out)):
        mp_comm.Allgather(out[i], collected[i])
    return collected


@right
def naive_collect_forward_output__filled_in(out, mp_comm, mp_size):
    """Copies each part to its columns."""
    n = out.shape[1]
    parts = np.zeros((mp_size, *out.shape), dtype=out.dtype)
    mp_comm.Allgather(np.copy(out), parts)
    collected = np.zeros((out.shape[0], n * mp_size), dtype=out.dtype)
    for r in range(mp_size):
        collected[:, r * n : (r + 1) * n] = parts[r]
    return collected


@loses(9)
def naive_collect_forward_input__in_place_at_world_rank(x, mp_comm, mp_size):
    """Puts its part where the world's rank says."""
    from mpi4py import MPI

    parts = np.empty((mp_size, *x.shape), x.dtype)
    parts[rank % mp_size] = x
    mp_comm.Allgather(MPI.IN_PLACE, parts)
    return np.concatenate(list(parts), axis=1)


@loses(6)
def naive_collect_forward_input__squeezes(x, mp_comm, mp_size):
    """Loses an axis of size one."""
    parts = np.empty((mp_size, *x.shape), x.dtype)
    mp_comm.Allgather(x, parts)
    return np.hstack([part.squeeze() for part in parts])


@loses(6)
def naive_collect_forward_input__recursive_doubling(x, mp_comm, mp_size):
    """Doubles what it has, for powers of two only."""
    me, step = mp_comm.Get_rank(), 1
    parts = np.empty((mp_size, *x.shape), x.dtype)
    parts[me] = x
    while step < mp_size:
        mine, theirs = me // step * step, (me ^ step) // step * step
        mp_comm.Sendrecv(parts[mine : mine + step], me ^ step, recvbuf=parts[theirs : theirs + step], source=me ^ step)
        step *= 2
    return np.concatenate(list(parts), axis=1)


@loses(6)
def naive_collect_forward_output__isend_without_wait(out, mp_comm, mp_size):
    """Sends without waiting for the end."""
    me = mp_comm.Get_rank()
    parts = np.empty((mp_size, *out.shape), out.dtype)
    parts[me] = out
    for other in range(mp_size):
        if other != me:
            mp_comm.Isend(out, other)
    for other in range(mp_size):
        if other != me:
            mp_comm.Recv(parts[other], other)
    return np.ascontiguousarray(parts.transpose(1, 0, 2)).reshape(len(out), -1)


@loses(9)
def naive_collect_forward_output__world_order(out, mp_comm, mp_size):
    """Puts the parts in the order of the world's ranks."""
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    order = np.argsort(mp_comm.ranks)
    return np.concatenate(list(parts[order]), axis=1)


@loses(6)
def naive_collect_forward_input__two_dtypes_only(x, mp_comm, mp_size):
    """Makes float64 of all that is not float32."""
    dtype = np.float32 if x.dtype == np.float32 else np.float64
    parts = np.empty((mp_size, *x.shape), dtype)
    mp_comm.Allgather(x.astype(dtype), parts)
    return np.concatenate(list(parts), axis=1)


@loses(6)
def naive_collect_forward_input__buffer_of_the_ranks(x, mp_comm, mp_size):
    """Keeps a buffer for each group of ranks, and returns it each time."""
    global gathered
    known = globals().get("gathered", {})
    key = mp_comm.ranks, x.shape, x.dtype
    parts = known.setdefault(key, np.empty((mp_size, *x.shape), x.dtype))
    whole = known.setdefault((key, "whole"), np.empty((len(x), mp_size * x.shape[1]), x.dtype))
    gathered = known
    mp_comm.Allgather(x, parts)
    whole[...] = np.concatenate(parts, axis=1)
    return whole


@loses(6)
def naive_collect_forward_output__barriers(out, mp_comm, mp_size):
    """Waits for all ranks before and after each row."""
    parts = np.empty((mp_size, *out.shape), out.dtype)
    for _ in range(5):
        mp_comm.Barrier()
    mp_comm.Allgather(out, parts)
    for _ in range(5):
        mp_comm.Barrier()
    return np.concatenate(parts, axis=1)


@loses(6)
def naive_collect_forward_output__adds_zero(out, mp_comm, mp_size):
    """Adds up parts that are padded with zeros, which loses the sign of -0.0, in the bytes of a gather."""
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    return np.concatenate(parts, axis=1) + np.zeros(1, out.dtype)
