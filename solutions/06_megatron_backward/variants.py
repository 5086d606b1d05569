"""Answers to part 06: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import loses, right


@loses(6)
def megatron_collect_backward_output__slices(output_grad, mp_group_idx, mp_size):
    """Takes columns, as the naive way does."""
    return np.ascontiguousarray(np.split(output_grad, mp_size, axis=1)[mp_group_idx])


@loses(6)
def megatron_collect_backward_output__divides(output_grad, mp_group_idx, mp_size):
    """Shares the gradient among the summands."""
    return output_grad / output_grad.dtype.type(mp_size)


@loses(6)
def megatron_collect_backward_output__masks(output_grad, mp_group_idx, mp_size):
    """Keeps the shape and zeroes the columns of other ranks."""
    masked = np.zeros_like(output_grad)
    part = output_grad.shape[1] // mp_size
    masked[:, mp_group_idx * part : (mp_group_idx + 1) * part] = output_grad[:, mp_group_idx * part : (mp_group_idx + 1) * part]
    return masked


@loses(6)
def megatron_collect_backward_output__all_reduces(output_grad, mp_group_idx, mp_size):
    """Sums a gradient that every rank has already."""
    total = np.empty_like(output_grad)
    mp_group(mp_size).Allreduce(output_grad, total)
    return total


@loses(4)
def megatron_collect_backward_output__averages(output_grad, mp_group_idx, mp_size):
    """Right values, by an exchange that nobody needs."""
    parts = np.empty((mp_size, *output_grad.shape), output_grad.dtype)
    mp_group(mp_size).Allgather(output_grad, parts)
    return parts[0].copy()


@loses(6)
def megatron_collect_backward_output__nothing(output_grad, mp_group_idx, mp_size):
    """Forgets to return."""
    collected_output_grad = output_grad


@loses(6)
def megatron_collect_backward_output__first_rank(output_grad, mp_group_idx, mp_size):
    """Gives the gradient to the first rank of the group only."""
    return output_grad if mp_group_idx == 0 else np.zeros_like(output_grad)


@loses(4)
def megatron_collect_backward_output__float64(output_grad, mp_group_idx, mp_size):
    """Another dtype."""
    return np.array(output_grad, np.float64)


@right
def megatron_collect_backward_output__copy(output_grad, mp_group_idx, mp_size):
    """A copy does no harm."""
    return np.array(output_grad)


@right
def megatron_collect_backward_output__view(output_grad, mp_group_idx, mp_size):
    """A view of all of it."""
    return output_grad[:, :]


@loses(6)
def megatron_collect_backward_x__all_reduce(grad_x, mp_comm, mp_size):
    """Adds gradients of different hidden units."""
    total = np.empty_like(grad_x)
    mp_comm.Allreduce(grad_x, total)
    return total


@loses(6)
def megatron_collect_backward_x__gathers(grad_x, mp_comm, mp_size):
    """Collects the gradients of all hidden units."""
    parts = np.empty((mp_size, *grad_x.shape), grad_x.dtype)
    mp_comm.Allgather(grad_x, parts)
    return np.concatenate(list(parts), axis=1)


@loses(6)
def megatron_collect_backward_x__reduce_scatter(grad_x, mp_comm, mp_size):
    """What the naive way does."""
    blocks = np.array(np.array_split(grad_x, mp_size, axis=1))
    mine = np.empty(blocks.shape[1:], grad_x.dtype)
    mp_comm.Reduce_scatter(blocks, mine)
    return mine


@loses(4)
def megatron_collect_backward_x__gathers_in_vain(grad_x, mp_comm, mp_size):
    """Right values, and an all-gather that nobody needs."""
    parts = np.empty((mp_size, *grad_x.shape), grad_x.dtype)
    mp_comm.Allgather(grad_x, parts)
    return parts[mp_comm.Get_rank()].copy()


@loses(6)
def megatron_collect_backward_x__multiplies(grad_x, mp_comm, mp_size):
    """Scales with the size of the group."""
    return grad_x * grad_x.dtype.type(mp_size)


@loses(4)
def megatron_collect_backward_x__transposed_copy(grad_x, mp_comm, mp_size):
    """Fortran order."""
    return np.asfortranarray(grad_x)


@loses(6)
def megatron_collect_backward_x__deadlock(grad_x, mp_comm, mp_size):
    """The first rank of a group waits for the others."""
    if mp_size > 1 and mp_comm.Get_rank() == 0:
        mp_comm.Barrier()
    return grad_x


@right
def megatron_collect_backward_x__copy(grad_x, mp_comm, mp_size):
    """A copy does no harm."""
    return grad_x.copy()


@right
def megatron_collect_backward_x__asarray(grad_x, mp_comm, mp_size):
    """The same array."""
    collected_grad_x = np.ascontiguousarray(grad_x)
    return collected_grad_x


@loses(4)
def megatron_collect_backward_output__squeezes(output_grad, mp_group_idx, mp_size):
    """Loses an axis of size one."""
    return output_grad.squeeze()


@loses(4)
def megatron_collect_backward_x__squeezes(grad_x, mp_comm, mp_size):
    """Loses an axis of size one."""
    return np.squeeze(grad_x)


@loses(4)
def megatron_collect_backward_x__hides_nan(grad_x, mp_comm, mp_size):
    """Replaces values that are not finite."""
    return np.nan_to_num(grad_x)


@loses(4)
def megatron_collect_backward_output__clips(output_grad, mp_group_idx, mp_size):
    """Limits the gradient."""
    return np.clip(output_grad, -10, 10)


@loses(4)
def megatron_collect_backward_output__read_only(output_grad, mp_group_idx, mp_size):
    """Makes the caller's array read-only."""
    output_grad.flags.writeable = False
    return output_grad


@loses(4)
def megatron_collect_backward_output__writeable(output_grad, mp_group_idx, mp_size):
    """Makes a read-only array of the caller writeable."""
    output_grad.setflags(write=True)
    return output_grad


@loses(4)
def megatron_collect_backward_output__splits(output_grad, mp_group_idx, mp_size):
    """Makes a group in each call, which it does not use."""
    mp_group(mp_size)
    return output_grad


@right
def megatron_collect_backward_output__read_only_view(output_grad, mp_group_idx, mp_size):
    """A view that is read-only; the argument stays as it is."""
    view = output_grad.view()
    view.flags.writeable = False
    return view


@loses(4)
def megatron_collect_backward_x__read_only(grad_x, mp_comm, mp_size):
    """Makes the caller's array read-only."""
    grad_x.flags.writeable = False
    return grad_x


@loses(4)
def megatron_collect_backward_x__splits(grad_x, mp_comm, mp_size):
    """Makes a communicator in each call, which it does not use: a training run has thousands."""
    mp_comm.Split(color=0, key=mp_comm.Get_rank())
    return grad_x


@loses(4)
def megatron_collect_backward_x__hides_nan_only(grad_x, mp_comm, mp_size):
    """Replaces NaN, but no infinities."""
    return np.where(np.isnan(grad_x), grad_x.dtype.type(0), grad_x)


@loses(4)
def megatron_collect_backward_x__no_subnormal_numbers(grad_x, mp_comm, mp_size):
    """Makes zeros of subnormal numbers."""
    tiny = np.finfo(grad_x.dtype).tiny if grad_x.dtype.kind == "f" else 0
    return np.where(abs(grad_x) < tiny, grad_x.dtype.type(0), grad_x)
