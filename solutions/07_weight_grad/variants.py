"""Answers to part 07: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import loses, right


@loses(10)
def collect_weight_grad__sum(grad_w, grad_b, dp_comm):
    """Forgets to divide."""
    sum_w, sum_b = np.empty_like(grad_w), np.empty_like(grad_b)
    dp_comm.Allreduce(grad_w, sum_w)
    dp_comm.Allreduce(grad_b, sum_b)
    return sum_w, sum_b


@loses(10)
def collect_weight_grad__weight_only(grad_w, grad_b, dp_comm):
    """Averages the weight's gradient only."""
    mean = np.empty_like(grad_w)
    dp_comm.Allreduce(grad_w, mean)
    return mean / grad_w.dtype.type(dp_comm.Get_size()), grad_b


@loses(10)
def collect_weight_grad__float64(grad_w, grad_b, dp_comm):
    """np.zeros without a dtype."""
    sum_w, sum_b = np.zeros(grad_w.shape), np.zeros(grad_b.shape)
    dp_comm.Allreduce(grad_w.astype(float), sum_w)
    dp_comm.Allreduce(grad_b.astype(float), sum_b)
    return sum_w / dp_comm.Get_size(), sum_b / dp_comm.Get_size()


@loses(10)
def collect_weight_grad__float32(grad_w, grad_b, dp_comm):
    """Averages in float32, and says float64."""
    means = []
    for grad in (grad_w, grad_b):
        mean = np.empty(grad.shape, np.float32)
        dp_comm.Allreduce(grad.astype(np.float32), mean)
        means.append((mean / dp_comm.Get_size()).astype(grad.dtype))
    return tuple(means)


@loses(10)
def collect_weight_grad__all_ranks(grad_w, grad_b, dp_comm):
    """Averages over all ranks instead of the group."""
    mean_w, mean_b = np.empty_like(grad_w), np.empty_like(grad_b)
    comm.Allreduce(grad_w, mean_w)
    comm.Allreduce(grad_b, mean_b)
    mean_w /= comm.Get_size()
    mean_b /= comm.Get_size()
    return mean_w, mean_b


@loses(10)
def collect_weight_grad__in_place(grad_w, grad_b, dp_comm):
    """Changes its arguments."""
    from mpi4py import MPI

    for grad in (grad_w, grad_b):
        dp_comm.Allreduce(MPI.IN_PLACE, grad)
        grad /= dp_comm.Get_size()
    return grad_w, grad_b


@loses(10)
def collect_weight_grad__gathers(grad_w, grad_b, dp_comm):
    """Right values, by sending every gradient to every rank."""
    means = []
    for grad in (grad_w, grad_b):
        every = np.empty((dp_comm.Get_size(), *grad.shape), grad.dtype)
        dp_comm.Allgather(grad, every)
        means.append(np.asarray(every.mean(axis=0, dtype=grad.dtype), grad.dtype))
    return tuple(means)


@loses(10)
def collect_weight_grad__first_rank(grad_w, grad_b, dp_comm):
    """Every rank but the first of its group keeps its own."""
    mean_w, mean_b = np.empty_like(grad_w), np.empty_like(grad_b)
    dp_comm.Allreduce(grad_w, mean_w)
    dp_comm.Allreduce(grad_b, mean_b)
    mean_w /= dp_comm.Get_size()
    mean_b /= dp_comm.Get_size()
    return (mean_w, mean_b) if dp_comm.Get_rank() == 0 else (grad_w, grad_b)


@loses(3)
def collect_weight_grad__matrices_only(grad_w, grad_b, dp_comm):
    """Takes the weight for a matrix and the bias for a vector."""
    rows, columns = grad_w.shape
    mean_w, mean_b = np.empty((rows, columns), grad_w.dtype), np.empty(columns, grad_b.dtype)
    dp_comm.Allreduce(grad_w, mean_w)
    dp_comm.Allreduce(grad_b, mean_b)
    mean_w /= dp_comm.Get_size()
    mean_b /= dp_comm.Get_size()
    return mean_w, mean_b


@loses(3)
def collect_weight_grad__flat_bias(grad_w, grad_b, dp_comm):
    """Flattens the bias."""
    mean_w, mean_b = np.empty_like(grad_w), np.empty_like(grad_b).ravel()
    dp_comm.Allreduce(grad_w, mean_w)
    dp_comm.Allreduce(grad_b, mean_b)
    mean_w /= dp_comm.Get_size()
    mean_b /= dp_comm.Get_size()
    return mean_w, mean_b


@loses(10)
def collect_weight_grad__deadlock(grad_w, grad_b, dp_comm):
    """Only the first rank of a group averages the bias."""
    mean_w, mean_b = np.empty_like(grad_w), np.empty_like(grad_b)
    dp_comm.Allreduce(grad_w, mean_w)
    if dp_comm.Get_rank() == 0:
        dp_comm.Allreduce(grad_b, mean_b)
    return mean_w / dp_comm.Get_size(), mean_b / dp_comm.Get_size()


@loses(3)
def collect_weight_grad__in_the_weights_dtype(grad_w, grad_b, dp_comm):
    """Both gradients in one exchange, with the digits that the weight's has."""
    both = np.concatenate([grad_w.ravel(), grad_b.ravel()]).astype(grad_w.dtype)
    mean = np.empty_like(both)
    dp_comm.Allreduce(both, mean)
    mean /= dp_comm.Get_size()
    return mean[: grad_w.size].reshape(grad_w.shape), mean[grad_w.size :].reshape(grad_b.shape).astype(grad_b.dtype)


@right
def collect_weight_grad__divided_first(grad_w, grad_b, dp_comm):
    """Divides before it sums, in place."""
    from mpi4py import MPI

    mean_w = np.asarray(grad_w / grad_w.dtype.type(dp_comm.Get_size()))
    mean_b = np.asarray(grad_b / grad_b.dtype.type(dp_comm.Get_size()))
    dp_comm.Allreduce(MPI.IN_PLACE, mean_b)
    dp_comm.Allreduce(MPI.IN_PLACE, mean_w)
    return [mean_w, mean_b]


@right
def collect_weight_grad__fused(grad_w, grad_b, dp_comm):
    """Both gradients in one exchange where they have one dtype."""
    if grad_w.dtype != grad_b.dtype:
        means = np.empty_like(grad_w), np.empty_like(grad_b)
        for grad, mean in zip((grad_w, grad_b), means, strict=True):
            dp_comm.Allreduce(grad, mean)
        return tuple(mean / mean.dtype.type(dp_comm.Get_size()) for mean in means)
    both = np.concatenate([grad_w.ravel(), grad_b.ravel()])
    mean = np.empty_like(both)
    dp_comm.Allreduce(both, mean)
    mean /= dp_comm.Get_size()
    return mean[: grad_w.size].reshape(grad_w.shape), mean[grad_w.size :].reshape(grad_b.shape)


@loses(10)
def collect_weight_grad__bias_travels_as_float64(grad_w, grad_b, dp_comm):
    """Sends the bias as float64."""
    n = dp_comm.Get_size()
    mean_w, sum_b = np.empty_like(grad_w), np.empty(grad_b.shape)
    dp_comm.Allreduce(grad_w, mean_w)
    dp_comm.Allreduce(grad_b.astype(float), sum_b)
    mean_w /= n
    return mean_w, (sum_b / n).astype(grad_b.dtype)


@loses(10)
def collect_weight_grad__bias_is_gathered(grad_w, grad_b, dp_comm):
    """Gathers the biases of all ranks."""
    n = dp_comm.Get_size()
    mean_w, every_b = np.empty_like(grad_w), np.empty((n, *grad_b.shape), grad_b.dtype)
    dp_comm.Allreduce(grad_w, mean_w)
    dp_comm.Allgather(grad_b, every_b)
    mean_w /= n
    return mean_w, every_b.mean(axis=0, dtype=grad_b.dtype)


@loses(10)
def collect_weight_grad__bias_sent_twice(grad_w, grad_b, dp_comm):
    """Reduces the bias twice."""
    n = dp_comm.Get_size()
    mean_w, mean_b = np.empty_like(grad_w), np.empty_like(grad_b)
    dp_comm.Allreduce(grad_w, mean_w)
    dp_comm.Allreduce(grad_b, mean_b)
    dp_comm.Allreduce(grad_b, mean_b)
    return mean_w / mean_w.dtype.type(n), mean_b / mean_b.dtype.type(n)


@loses(3)
def collect_weight_grad__one_buffer_for_each_shape(grad_w, grad_b, dp_comm):
    """Reduces both into one array if their shapes agree."""
    means = {}
    for grad in (grad_w, grad_b):
        key = grad.shape, grad.dtype
        means.setdefault(key, np.empty_like(grad))
        dp_comm.Allreduce(grad, means[key])
        means[key] /= dp_comm.Get_size()
    return means[grad_w.shape, grad_w.dtype], means[grad_b.shape, grad_b.dtype]


@loses(10)
def collect_weight_grad__place_from_world_rank(grad_w, grad_b, dp_comm):
    """Takes the rank of the world for that of the group."""
    from mpi4py import MPI

    n = dp_comm.Get_size()
    me, means = rank // (comm.Get_size() // n), []
    for grad in (grad_w, grad_b):
        flat = np.zeros(-(-grad.size // n) * n, grad.dtype)
        flat[: grad.size] = grad.ravel()
        mine = np.empty(flat.size // n, grad.dtype)
        dp_comm.Reduce_scatter(flat, mine)
        flat.reshape(n, -1)[me] = mine / grad.dtype.type(n)
        dp_comm.Allgather(MPI.IN_PLACE, flat)
        means.append(flat[: grad.size].reshape(grad.shape))
    return tuple(means)


@loses(3)
def collect_weight_grad__halving_and_doubling(grad_w, grad_b, dp_comm):
    """Halves and doubles, for powers of two only."""
    me, n = dp_comm.Get_rank(), dp_comm.Get_size()

    def mean(grad):
        flat = np.zeros(-(-grad.size // n) * n, grad.dtype)
        flat[: grad.size] = grad.ravel()
        blocks = flat.reshape(n, -1)
        low, half = 0, n // 2
        while half:
            other, keep, give = me ^ half, low, low + half
            if me & half:
                keep, give = give, keep
            received = np.empty((half, blocks.shape[1]), grad.dtype)
            dp_comm.Sendrecv(blocks[give : give + half], other, recvbuf=received, source=other)
            blocks[keep : keep + half] += received
            low, half = keep, half // 2
        step = 1
        while step < n:
            mine, theirs = me // step * step, (me ^ step) // step * step
            dp_comm.Sendrecv(blocks[mine : mine + step], me ^ step, recvbuf=blocks[theirs : theirs + step], source=me ^ step)
            step *= 2
        return flat[: grad.size].reshape(grad.shape) / grad.dtype.type(n)

    return mean(grad_w), mean(grad_b)


@loses(3)
def collect_weight_grad__sum_of_squares_zero_is_skipped(grad_w, grad_b, dp_comm):
    """Sends nothing if all its gradients are zero."""
    if not grad_w.any() and not grad_b.any():
        return grad_w.copy(), grad_b.copy()
    means = []
    for grad in (grad_w, grad_b):
        mean = np.empty_like(grad)
        dp_comm.Allreduce(grad, mean)
        mean /= dp_comm.Get_size()
        means.append(mean)
    return tuple(means)
