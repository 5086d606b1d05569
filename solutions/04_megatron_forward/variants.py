"""Answers to part 04: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right


@loses(8)
def megatron_collect_forward_input__gathers(x, mp_comm, mp_size):
    """Collects all columns, as the naive way does."""
    parts = np.empty((mp_size, *x.shape), x.dtype)
    mp_comm.Allgather(x, parts)
    return np.concatenate(list(parts), axis=1)


@loses(5)
def megatron_collect_forward_input__gathers_in_vain(x, mp_comm, mp_size):
    """Right values, and an all-gather that nobody needs."""
    parts = np.empty((mp_size, *x.shape), x.dtype)
    mp_comm.Allgather(x, parts)
    return parts[mp_comm.Get_rank()]


@loses(8)
def megatron_collect_forward_input__sums(x, mp_comm, mp_size):
    """Adds up what belongs to different hidden units."""
    total = np.empty_like(x)
    mp_comm.Allreduce(x, total)
    return total


@loses(8)
def megatron_collect_forward_input__nothing(x, mp_comm, mp_size):
    """Forgets to return."""
    collected_x = x


@loses(8)
def megatron_collect_forward_input__splits_again(x, mp_comm, mp_size):
    """Takes a part of the part."""
    width = x.shape[1] // mp_size
    start = mp_comm.Get_rank() * width
    return np.ascontiguousarray(x[:, start : start + width])


@loses(8)
def megatron_collect_forward_input__scales(x, mp_comm, mp_size):
    """Divides, so that the sum becomes a mean."""
    return x / x.dtype.type(mp_size)


@loses(5)
def megatron_collect_forward_input__float64(x, mp_comm, mp_size):
    """Another dtype."""
    return x.astype(np.float64)


@loses(5)
def megatron_collect_forward_input__column_order(x, mp_comm, mp_size):
    """A copy in Fortran order."""
    return np.asfortranarray(x)


@right
def megatron_collect_forward_input__copy(x, mp_comm, mp_size):
    """A copy does no harm."""
    return x.copy()


@right
def megatron_collect_forward_input__view(x, mp_comm, mp_size):
    """A view of all of it."""
    collected_x = x[:]
    return collected_x


@loses(10)
def megatron_collect_forward_output__own_summand(out, mp_comm, mp_size):
    """Forgets the sum."""
    return out


@loses(10)
@changes("return total", "return total / out.dtype.type(mp_size)")
def megatron_collect_forward_output__mean():
    """The mean instead of the sum."""


@loses(10)
def megatron_collect_forward_output__side_by_side(out, mp_comm, mp_size):
    """Puts summands side by side, as the naive way does with its parts."""
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    return np.concatenate(list(parts), axis=1)


@loses(7)
def megatron_collect_forward_output__gathers_and_sums(out, mp_comm, mp_size):
    """Right values, by sending every summand to every rank."""
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    return parts.sum(axis=0, dtype=out.dtype)


@loses(7)
def megatron_collect_forward_output__in_place(out, mp_comm, mp_size):
    """Reduces in place, so the argument changes."""
    from mpi4py import MPI

    mp_comm.Allreduce(MPI.IN_PLACE, out)
    return out


@loses(10)
def megatron_collect_forward_output__largest(out, mp_comm, mp_size):
    """The maximum instead of the sum."""
    from mpi4py import MPI

    total = np.empty_like(out)
    mp_comm.Allreduce(out, total, op=MPI.MAX)
    return total


@loses(10)
@changes("mp_comm.Allreduce(out, total)", "comm.Allreduce(out, total)")
def megatron_collect_forward_output__all_ranks():
    """Sums over all ranks instead of the group."""


@loses(10)
def megatron_collect_forward_output__float32(out, mp_comm, mp_size):
    """Sums in float32, whatever came in."""
    total = np.empty(out.shape, np.float32)
    mp_comm.Allreduce(out.astype(np.float32), total)
    return total.astype(out.dtype)


@loses(10)
def megatron_collect_forward_output__halves_that_fit(out, mp_comm, mp_size):
    """Reduce-scatter and all-gather, without padding: right where the group divides the output."""
    mine, total = np.empty(out.size // mp_size, out.dtype), np.empty_like(out)
    mp_comm.Reduce_scatter(out, mine)
    mp_comm.Allgather(mine, total)
    return total


@right
def megatron_collect_forward_output__copy_in_place(out, mp_comm, mp_size):
    """A copy, reduced in place."""
    from mpi4py import MPI

    total = out.copy()
    mp_comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    return total


@right
def megatron_collect_forward_output__two_halves(out, mp_comm, mp_size):
    """Reduce-scatter and all-gather, which is what a ring all-reduce does; padded to fit."""
    flat = np.zeros(-(-out.size // mp_size) * mp_size, out.dtype)
    flat[: out.size] = out.ravel()
    mine = np.empty(flat.size // mp_size, out.dtype)
    mp_comm.Reduce_scatter(flat, mine)
    mp_comm.Allgather(mine, flat)
    return flat[: out.size].reshape(out.shape).copy()


@loses(10)
def megatron_collect_forward_output__halves_at_world_rank(out, mp_comm, mp_size):
    """Takes the rank of the world for that of the group."""
    from mpi4py import MPI

    flat = np.zeros(-(-out.size // mp_size) * mp_size, out.dtype)
    flat[: out.size] = out.ravel()
    mine = np.empty(flat.size // mp_size, out.dtype)
    mp_comm.Reduce_scatter(flat, mine)
    flat.reshape(mp_size, -1)[rank % mp_size] = mine
    mp_comm.Allgather(MPI.IN_PLACE, flat)
    return flat[: out.size].reshape(out.shape).copy()


@loses(7)
def megatron_collect_forward_output__halving_and_doubling(out, mp_comm, mp_size):
    """Halves and doubles, for powers of two only."""
    me = mp_comm.Get_rank()
    flat = np.zeros(-(-out.size // mp_size) * mp_size, out.dtype)
    flat[: out.size] = out.ravel()
    blocks = flat.reshape(mp_size, -1)
    low, half = 0, mp_size // 2
    while half:
        other, keep, give = me ^ half, low, low + half
        if me & half:
            keep, give = give, keep
        received = np.empty((half, blocks.shape[1]), out.dtype)
        mp_comm.Sendrecv(blocks[give : give + half], other, recvbuf=received, source=other)
        blocks[keep : keep + half] += received
        low, half = keep, half // 2
    step = 1
    while step < mp_size:
        mine, theirs = me // step * step, (me ^ step) // step * step
        mp_comm.Sendrecv(blocks[mine : mine + step], me ^ step, recvbuf=blocks[theirs : theirs + step], source=me ^ step)
        step *= 2
    return flat[: out.size].reshape(out.shape).copy()


@loses(7)
def megatron_collect_forward_output__integers_lose(out, mp_comm, mp_size):
    """Divides before it adds."""
    total = np.zeros(out.shape, out.dtype)
    mp_comm.Allreduce(out / out.dtype.type(mp_size), total)
    total *= mp_size
    return total


@right
def megatron_collect_forward_output__agrees_on_the_size_first(out, mp_comm, mp_size):
    """Asks all ranks for their size first."""
    sizes = np.empty((mp_size, 2), np.int32)
    mp_comm.Allgather(np.array(out.shape, np.int32), sizes)
    total = np.empty_like(out)
    mp_comm.Allreduce(out, total)
    return total
