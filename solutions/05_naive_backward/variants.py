"""Answers to part 05: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right


@loses(10)
def naive_collect_backward_output__rows(output_grad, mp_group_idx, mp_size):
    """Takes samples instead of outputs."""
    return np.array_split(output_grad, mp_size, axis=0)[mp_group_idx]


@loses(6)
def naive_collect_backward_output__view(output_grad, mp_group_idx, mp_size):
    """Right values, in a view that is not contiguous."""
    return np.split(output_grad, mp_size, axis=1)[mp_group_idx]


@loses(10)
def naive_collect_backward_output__whole(output_grad, mp_group_idx, mp_size):
    """Takes all columns."""
    return output_grad


@loses(10)
def naive_collect_backward_output__strided(output_grad, mp_group_idx, mp_size):
    """Every mp_size-th column."""
    return np.ascontiguousarray(output_grad[:, mp_group_idx::mp_size])


@loses(10)
def naive_collect_backward_output__by_world_rank(output_grad, mp_group_idx, mp_size):
    """Looks at the rank instead of the index it is given."""
    part = output_grad.shape[1] // mp_size
    start = rank % mp_size * part
    return output_grad[:, start : start + part].copy()


@loses(10)
def naive_collect_backward_output__divides(output_grad, mp_group_idx, mp_size):
    """Divides the gradient by the size of the group."""
    return np.split(output_grad, mp_size, axis=1)[mp_group_idx] / output_grad.dtype.type(mp_size)


@loses(6)
def naive_collect_backward_output__float64(output_grad, mp_group_idx, mp_size):
    """Always float64."""
    part = output_grad.shape[1] // mp_size
    return np.array(output_grad[:, mp_group_idx * part : (mp_group_idx + 1) * part], np.float64)


@right
def naive_collect_backward_output__split_copy(output_grad, mp_group_idx, mp_size):
    """np.split and a copy."""
    return np.split(output_grad, mp_size, axis=1)[mp_group_idx].copy()


@right
def naive_collect_backward_output__reshaped(output_grad, mp_group_idx, mp_size):
    """A third axis for the ranks."""
    batch_size, out_dim = output_grad.shape
    return np.ascontiguousarray(output_grad.reshape(batch_size, mp_size, out_dim // mp_size)[:, mp_group_idx])


@loses(14)
def naive_collect_backward_x__memory_blocks(grad_x, mp_comm, mp_size):
    """Lets MPI cut the memory as it lies."""
    mine = np.empty((grad_x.shape[0], grad_x.shape[1] // mp_size), grad_x.dtype)
    mp_comm.Reduce_scatter(grad_x, mine)
    return mine


@loses(10)
def naive_collect_backward_x__all_reduce(grad_x, mp_comm, mp_size):
    """Right values, at twice the traffic."""
    total = np.empty_like(grad_x)
    mp_comm.Allreduce(grad_x, total)
    return np.ascontiguousarray(np.split(total, mp_size, axis=1)[mp_comm.Get_rank()])


@loses(14)
def naive_collect_backward_x__no_sum(grad_x, mp_comm, mp_size):
    """Takes the columns of its own summand."""
    return np.ascontiguousarray(np.split(grad_x, mp_size, axis=1)[mp_comm.Get_rank()])


@loses(14)
@changes("return mine", "return mine / grad_x.dtype.type(mp_size)")
def naive_collect_backward_x__mean():
    """The mean instead of the sum."""


@loses(14)
def naive_collect_backward_x__whole(grad_x, mp_comm, mp_size):
    """The whole sum on every rank."""
    total = np.empty_like(grad_x)
    mp_comm.Allreduce(grad_x, total)
    return total


@loses(14)
@changes("mine = np.empty(blocks.shape[1:], grad_x.dtype)", "mine = np.empty((3, grad_x.shape[1] // mp_size), grad_x.dtype)")
def naive_collect_backward_x__fixed_shape():
    """A batch size that is written into the function."""


@loses(10)
def naive_collect_backward_x__float64(grad_x, mp_comm, mp_size):
    """Sums in float64, and returns that."""
    blocks = np.array(np.split(grad_x, mp_size, axis=1), np.float64)
    mine = np.empty(blocks.shape[1:])
    mp_comm.Reduce_scatter(blocks, mine)
    return mine


@right
def naive_collect_backward_x__transposed(grad_x, mp_comm, mp_size):
    """The rows of the transpose are the columns."""
    mine = np.empty((grad_x.shape[1] // mp_size, grad_x.shape[0]), grad_x.dtype)
    mp_comm.Reduce_scatter(np.ascontiguousarray(grad_x.T), mine)
    return np.ascontiguousarray(mine.T)


@right
def naive_collect_backward_x__swapped_axes(grad_x, mp_comm, mp_size):
    """A third axis for the ranks, moved to the front; recvcounts given."""
    batch_size, part = grad_x.shape[0], grad_x.shape[1] // mp_size
    blocks = np.ascontiguousarray(grad_x.reshape(batch_size, mp_size, part).swapaxes(0, 1))
    mine = np.empty(batch_size * part, grad_x.dtype)
    mp_comm.Reduce_scatter(blocks, mine, [batch_size * part] * mp_size)
    return mine.reshape(batch_size, part)


@loses(6)
def naive_collect_backward_output__squeezes(output_grad, mp_group_idx, mp_size):
    """Loses an axis of size one."""
    return np.ascontiguousarray(np.split(output_grad, mp_size, axis=1)[mp_group_idx].squeeze())


@loses(10)
def naive_collect_backward_x__squeezes(grad_x, mp_comm, mp_size):
    """Loses an axis of size one."""
    blocks = np.array(np.split(grad_x, mp_size, axis=1))
    mine = np.empty(blocks.shape[1:], grad_x.dtype)
    mp_comm.Reduce_scatter(blocks, mine)
    return mine.squeeze()


@loses(14)
def naive_collect_backward_x__by_world_rank(grad_x, mp_comm, mp_size):
    """Takes the rank of the world for that of the group."""
    me = rank % mp_size
    blocks = np.array(np.split(grad_x, mp_size, axis=1))
    total, got = blocks[me].copy(), np.empty_like(blocks[0])
    for step in range(1, mp_size):
        to, source = (me + step) % mp_size, (me - step) % mp_size
        mp_comm.Sendrecv(blocks[to], to, recvbuf=got, source=source)
        total += got
    return total


@loses(10)
def naive_collect_backward_x__recursive_halving(grad_x, mp_comm, mp_size):
    """Halves, for powers of two only."""
    me = mp_comm.Get_rank()
    blocks = np.array(np.split(grad_x, mp_size, axis=1))
    low, half = 0, mp_size // 2
    while half:
        other, keep, give = me ^ half, low, low + half
        if me & half:
            keep, give = give, keep
        received = np.empty((half, *blocks.shape[1:]), blocks.dtype)
        mp_comm.Sendrecv(blocks[give : give + half], other, recvbuf=received, source=other)
        blocks[keep : keep + half] += received
        low, half = keep, half // 2
    return blocks[me].copy()
