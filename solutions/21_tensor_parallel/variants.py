"""Answers to part 21: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right


@loses(8)
def copy_to_group__identity(x, comm):
    """Nothing on the way back: LayerNorm's gradients differ between the ranks (a bug of real systems)."""
    return Tensor.from_operation(x.data, (x,), lambda grad: (grad,))


@loses(8)
def copy_to_group__itself(x, comm):
    """The tensor itself."""
    return x


@loses(8)
@changes("return (total,)", "return (total / grad.dtype.type(comm.Get_size()),)")
def copy_to_group__mean():
    """Averages where it must sum (a bug of real systems)."""


@loses(8)
def copy_to_group__swapped(x, comm):
    """f is g, and g is f."""
    total = np.empty_like(x.data)
    comm.Allreduce(np.ascontiguousarray(x.data), total)
    return Tensor.from_operation(total, (x,), lambda grad: (grad,))


@loses(5)
def copy_to_group__in_place(x, comm):
    """Overwrites the gradient that the residual connection gets, too."""

    def backward(grad):
        kept = np.ascontiguousarray(grad)
        comm.Allreduce(MPI.IN_PLACE, kept)
        return (kept.copy(),)

    return Tensor.from_operation(x.data, (x,), backward)


@loses(5)
@changes("comm.Allreduce(np.ascontiguousarray(grad), total)", "comm.Allreduce(grad, total)")
def copy_to_group__contiguous_only():
    """Fails for the gradient of a transpose."""


@loses(5)
def copy_to_group__double(x, comm):
    """Another dtype."""

    def backward(grad):
        total = np.empty(grad.shape)
        comm.Allreduce(np.ascontiguousarray(grad, dtype=np.float64), total)
        return (total,)

    return Tensor.from_operation(x.data, (x,), backward)


@loses(5)
def copy_to_group__both_ways(x, comm):
    """Right values; but a mean of equal arrays on the way forward, which nobody needs."""
    total = np.empty_like(x.data)
    comm.Allreduce(np.ascontiguousarray(x.data), total)

    def backward(grad):
        total = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), total)
        return (total,)

    return Tensor.from_operation(x.data, (x,), backward)


@loses(8)
@changes("comm.Allreduce(np.ascontiguousarray(grad), total)", "everyone.Allreduce(np.ascontiguousarray(grad), total)")
def copy_to_group__everyone():
    """Adds up over all ranks, whatever the group."""


@loses(8)
def copy_to_group__nothing(x, comm):
    """Forgets to return."""
    out = Tensor(x.data)


@loses(8)
def copy_to_group__twice(x, comm):
    """The sum of sums."""

    def backward(grad):
        total = np.ascontiguousarray(grad).copy()
        comm.Allreduce(MPI.IN_PLACE, total)
        comm.Allreduce(MPI.IN_PLACE, total)
        return (total,)

    return Tensor.from_operation(x.data, (x,), backward)


@right
def copy_to_group__copies(x, comm):
    """A copy on both ways."""

    def backward(grad):
        total = np.array(grad, order="C")
        comm.Allreduce(MPI.IN_PLACE, total)
        return (total,)

    return Tensor.from_operation(x.data.copy(), (x,), backward)


@right
def copy_to_group__in_two_halves(x, comm):
    """A reduce-scatter and an all-gather are an all-reduce."""

    def backward(grad):
        n = comm.Get_size()
        flat = np.zeros(-(-grad.size // n) * n, grad.dtype)
        flat[: grad.size] = grad.ravel()
        mine = np.empty(flat.size // n, grad.dtype)
        comm.Reduce_scatter(flat, mine)
        comm.Allgather(mine, flat)
        return (flat[: grad.size].reshape(grad.shape),)

    return Tensor.from_operation(x.data, (x,), backward)


@right
@changes("comm.Allreduce(np.ascontiguousarray(grad), total)", "comm.Iallreduce(np.ascontiguousarray(grad), total).Wait()")
def copy_to_group__non_blocking():
    """Starts, and waits."""


@right
def copy_to_group__hook(x, comm):
    """A hook on the result has the same effect."""

    def average(grad):
        total = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), total)
        return total

    out = Tensor.from_operation(x.data, (x,), lambda grad: (grad,))
    if out.requires_grad:
        out.register_hook(average)
    return out


@loses(6)
def reduce_from_group__identity(x, comm):
    """Adds nothing up."""
    return Tensor.from_operation(x.data, (x,), lambda grad: (grad,))


@loses(6)
def reduce_from_group__mean(x, comm):
    """Averages where it must sum."""
    total = np.empty_like(x.data)
    comm.Allreduce(x.data, total)
    total /= comm.Get_size()
    return Tensor.from_operation(total, (x,), lambda grad: (grad,))


@loses(6)
def reduce_from_group__reduces_back(x, comm):
    """Adds up a gradient that is whole: the loss times the size of the group (a bug of real systems)."""
    total = np.empty_like(x.data)
    comm.Allreduce(x.data, total)

    def backward(grad):
        back = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), back)
        return (back,)

    return Tensor.from_operation(total, (x,), backward)


@loses(6)
def reduce_from_group__shares_back(x, comm):
    """Divides the gradient among the summands."""
    total = np.empty_like(x.data)
    comm.Allreduce(x.data, total)
    n = comm.Get_size()
    return Tensor.from_operation(total, (x,), lambda grad: (grad / grad.dtype.type(n),))


@loses(3)
def reduce_from_group__in_place(x, comm):
    """Overwrites its input: what needs that for its own gradient is wrong."""
    comm.Allreduce(MPI.IN_PLACE, x.data)
    return Tensor.from_operation(x.data, (x,), lambda grad: (grad,))


@loses(6)
@changes("comm.Allreduce(x.data, total)", "comm.Allreduce(x.data, total, MPI.MAX)")
def reduce_from_group__largest():
    """Another operation."""


@loses(6)
@changes("return Tensor.from_operation(total, (x,), lambda grad: (grad,))", "return Tensor(total)")
def reduce_from_group__no_graph():
    """A tensor that was made from nothing: no gradient comes back."""


@loses(3)
def reduce_from_group__averages_back(x, comm):
    """The mean of equal gradients is right, and sent for nothing."""
    total = np.empty_like(x.data)
    comm.Allreduce(x.data, total)

    def backward(grad):
        back = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), back)
        return (back / grad.dtype.type(comm.Get_size()),)

    return Tensor.from_operation(total, (x,), backward)


@loses(3)
def reduce_from_group__double(x, comm):
    """Another dtype. (The block's residual connection goes on in double precision, too.)"""
    total = np.empty(x.shape)
    comm.Allreduce(x.data.astype(np.float64), total)
    return Tensor.from_operation(total, (x,), lambda grad: (grad.astype(x.dtype),))


@right
def reduce_from_group__copies(x, comm):
    """In place of a copy."""
    total = x.data.copy()
    comm.Allreduce(MPI.IN_PLACE, total)
    return Tensor.from_operation(total, (x,), lambda grad: (grad.copy(),))


@right
def reduce_from_group__non_blocking(x, comm):
    """Non-blocking."""
    total = np.zeros_like(x.data)
    request = comm.Iallreduce(x.data, total, op=MPI.SUM)
    request.Wait()
    return Tensor.from_operation(total, [x], lambda grad: [grad])


@right
def reduce_from_group__flat(x, comm):
    """As a flat array."""
    total = np.empty(x.data.size, x.dtype)
    comm.Allreduce(x.data.reshape(-1), total)
    return Tensor.from_operation(total.reshape(x.shape), (x,), lambda grad: (np.asarray(grad),))


@loses(9)
@changes("    comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)\n", "")
def vocab_parallel_cross_entropy__own_largest():
    """Each rank takes off the largest of its own words: the sums do not fit together."""


@loses(9)
@changes("comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)", "comm.Allreduce(MPI.IN_PLACE, most, MPI.SUM)")
def vocab_parallel_cross_entropy__summed_largest():
    """Sum and maximum mixed up (a bug of real systems): right while the logits are small."""


@loses(9)
@changes("comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)", "most *= 0")
def vocab_parallel_cross_entropy__no_largest():
    """Overflows for large logits."""


@loses(3)
@changes(
    "    found = soft[(*here, mine[here])].sum()",
    """
    found = np.zeros(labels.shape, z.dtype)
    found[here] = soft[(*here, mine[here])]
    comm.Allreduce(MPI.IN_PLACE, found)
    found = found.sum() / comm.Get_size()""",
)
def vocab_parallel_cross_entropy__three():
    """The labels' logits of all tokens, in a third all-reduce."""


@loses(9)
@changes("comm.Allreduce(MPI.IN_PLACE, sums)", "comm.Allreduce(MPI.IN_PLACE, sums[-1:])")
def vocab_parallel_cross_entropy__own_sum():
    """Each rank's loss has its own words alone below."""


@loses(9)
@changes("grad / labels.size", "grad * comm.Get_size() / labels.size")
def vocab_parallel_cross_entropy__times_the_ranks():
    """The gradient is added up once more: multiplied by the size of the group (a bug of real systems)."""


@loses(9)
@changes(
    "loss = (np.log(sums[:-1]).sum() - sums[-1]) / labels.size",
    "loss = (np.log(sums[:-1]).sum() - sums[-1]) / labels.size / comm.Get_size()",
)
def vocab_parallel_cross_entropy__mean_over_ranks():
    """A loss that is averaged over the ranks."""


@loses(9)
@changes("mine = labels - comm.Get_rank() * words", "mine = labels % words")
def vocab_parallel_cross_entropy__local_labels():
    """Takes the labels as places among its own words."""


@loses(9)
@changes("here = np.nonzero((mine >= 0) & (mine < words))", "here = np.nonzero((mine >= 0) & (mine < words - 1))")
def vocab_parallel_cross_entropy__off_by_one():
    """A word too many."""


@loses(9)
@changes(
    "    here = np.nonzero((mine >= 0) & (mine < words))",
    """
    mine = np.clip(mine, 0, words - 1)
    here = np.nonzero(mine >= 0)""",
)
def vocab_parallel_cross_entropy__clipped_labels():
    """Labels of other ranks become the first or the last word."""


@loses(9)
@changes(
    "loss = (np.log(sums[:-1]).sum() - sums[-1]) / labels.size",
    "loss = np.log(sums[:-1]).sum() - sums[-1]",
    "return (grad_logits * (grad / labels.size).astype(z.dtype),)",
    "return (grad_logits * grad.astype(z.dtype),)",
)
def vocab_parallel_cross_entropy__sum():
    """The sum over the tokens, and its gradient."""


@loses(9)
@changes("return (grad_logits * (grad / labels.size).astype(z.dtype),)", "return (grad_logits * z.dtype.type(1 / labels.size),)")
def vocab_parallel_cross_entropy__no_factor():
    """Forgets the gradient of the loss itself."""


@loses(9)
@changes("        grad_logits[(*here, mine[here])] -= 1\n", "")
def vocab_parallel_cross_entropy__softmax_only():
    """The gradient without the one at the label."""


@loses(9)
@changes(
    "    soft = z - most[..., None]",
    """
    z -= most[..., None]
    soft = z""",
)
def vocab_parallel_cross_entropy__in_place():
    """Overwrites the logits."""


@loses(6)
@changes("z, words = logits.data, logits.shape[-1]", "z, words = logits.data.astype(np.float64), logits.shape[-1]")
def vocab_parallel_cross_entropy__double():
    """Another dtype."""


@loses(3)
def vocab_parallel_cross_entropy__gathers(logits, labels, comm):
    """Holds all logits."""
    n, words = comm.Get_size(), logits.shape[-1]
    flat = np.empty((n, *logits.shape), logits.dtype)
    comm.Allgather(np.ascontiguousarray(logits.data), flat)
    z = np.concatenate(list(flat), axis=-1)
    soft = np.exp(z - z.max(axis=-1, keepdims=True))
    soft /= soft.sum(axis=-1, keepdims=True)
    right = np.take_along_axis(z, labels[..., None], axis=-1)[..., 0]
    most = z.max(axis=-1)
    loss = (np.log(np.exp(z - most[..., None]).sum(axis=-1)) + most - right).mean()

    def backward(grad):
        whole = soft.copy()
        np.put_along_axis(whole, labels[..., None], np.take_along_axis(whole, labels[..., None], axis=-1) - 1, axis=-1)
        mine = np.split(whole, n, axis=-1)[comm.Get_rank()]
        return ((mine * (grad / labels.size)).astype(logits.dtype),)

    return Tensor.from_operation(np.asarray(loss, logits.dtype), (logits,), backward)


@right
def vocab_parallel_cross_entropy__of_logs(logits, labels, comm):
    """The log of the sum of each rank's exponentials, in float64; the labels' logits in a tiny all-reduce of their own."""
    z, words = logits.data.astype(np.float64), logits.shape[-1]
    most = np.nan_to_num(z.max(axis=-1, keepdims=True), neginf=0.0)
    own = np.log(np.exp(z - most).sum(axis=-1)) + most[..., 0]
    largest = np.empty_like(own)
    comm.Allreduce(own, largest, op=MPI.MAX)
    total = np.empty_like(own)
    comm.Allreduce(np.exp(own - largest), total)
    lse = np.log(total) + largest
    mine = labels - comm.Get_rank() * words
    inside = (mine >= 0) & (mine < words)
    right = np.where(inside, np.take_along_axis(z, np.where(inside, mine, 0)[..., None], axis=-1)[..., 0] - largest, 0)
    found = np.array([right.sum()])
    comm.Allreduce(MPI.IN_PLACE, found)
    loss = (np.log(total).sum() - found[0]) / labels.size

    def backward(grad):
        soft = np.exp(z - lse[..., None])
        hot = (np.arange(words) == mine[..., None]) & inside[..., None]
        return (((soft - hot) * (float(grad) / labels.size)).astype(logits.dtype),)

    return Tensor.from_operation(np.array(loss, logits.dtype), (logits,), backward)


@right
@changes(
    """
    sums = np.append(soft.sum(axis=-1), found).astype(z.dtype)
    comm.Allreduce(MPI.IN_PLACE, sums)""",
    """
    of_labels, all_sums = np.zeros(1, z.dtype), np.empty(labels.size, z.dtype)
    request = comm.Iallreduce(np.array([found], z.dtype), of_labels)
    comm.Allreduce(soft.sum(axis=-1).reshape(-1), all_sums)
    request.Wait()
    sums = np.append(all_sums, of_labels)""",
)
def vocab_parallel_cross_entropy__non_blocking():
    """The sum of the labels' logits travels beside."""


@right
@changes(
    "    here = np.nonzero((mine >= 0) & (mine < words))",
    """
    here = np.array([(b, t) for b, t in np.ndindex(labels.shape) if 0 <= mine[b, t] < words], int).reshape(-1, 2)
    here = here[:, 0], here[:, 1]""",
)
def vocab_parallel_cross_entropy__token_by_token():
    """With a loop over the tokens."""


@loses(5)
def copy_to_group__hook_on_x(x, comm):
    """A hook on its input: adds up all that comes to x, from elsewhere, too."""

    def total(grad):
        found = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), found)
        return found

    if x.requires_grad:
        x.register_hook(total)
    return Tensor.from_operation(x.data, (x,), lambda grad: (grad,))


@loses(5)
def copy_to_group__always_hooks(x, comm):
    """Fails where nothing needs a gradient."""

    def total(grad):
        found = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), found)
        return found

    out = Tensor.from_operation(x.data, (x,), lambda grad: (grad,))
    out.register_hook(total)
    return out


@loses(5)
@changes(
    "total = np.empty(grad.shape, grad.dtype)",
    "total = copy_to_group.__dict__.setdefault((grad.shape, grad.dtype), np.empty(grad.shape, grad.dtype))",
)
def copy_to_group__one_buffer():
    """Keeps one array for all gradients."""


@loses(3)
@changes("np.empty_like(x.data)", "reduce_from_group.__dict__.setdefault((x.shape, x.dtype), np.empty_like(x.data))")
def reduce_from_group__one_buffer():
    """Keeps one array for all results."""


@loses(6)
@changes("return Tensor.from_operation(total, (x,), lambda grad: (grad,))", "return Tensor.from_operation(total, (x,), lambda grad: grad)")
def reduce_from_group__no_tuple():
    """An array where a tuple is expected."""


@right
def reduce_from_group__double_inside(x, comm):
    """Adds in float64, and rounds once."""
    total = x.data.astype(np.float64)
    comm.Allreduce(MPI.IN_PLACE, total)
    return Tensor.from_operation(total.astype(x.dtype), (x,), lambda grad: (grad,))


@loses(9)
@changes("most = z.max(axis=-1)", "most = np.maximum(z.max(axis=-1), 0)")
def vocab_parallel_cross_entropy__max_of_zero():
    """The largest logit, or 0."""


@loses(9)
@changes("mine = labels - comm.Get_rank() * words", "mine = labels - everyone.Get_rank() % comm.Get_size() * words")
def vocab_parallel_cross_entropy__rank_in_everyone():
    """Its place among all ranks for that in the group."""


@loses(6)
@changes(
    "    def backward(grad):",
    """
    vocab_parallel_cross_entropy.soft = soft

    def backward(grad):""",
    "grad_logits = soft.copy()",
    "grad_logits = vocab_parallel_cross_entropy.soft.copy()",
)
def vocab_parallel_cross_entropy__global_softmax():
    """Keeps the softmax of the last call only."""


@loses(9)
@changes("np.asarray(loss, z.dtype)", "np.full((1, 1), loss, z.dtype)")
def vocab_parallel_cross_entropy__one_by_one():
    """A loss of shape (1, 1)."""


@loses(6)
@changes(
    "z, words = logits.data, logits.shape[-1]",
    "z, words = np.squeeze(logits.data), logits.shape[-1]",
    "    mine = labels - comm.Get_rank() * words",
    """
    labels = np.squeeze(labels)
    mine = labels - comm.Get_rank() * words""",
    "return (grad_logits * (grad / labels.size).astype(z.dtype),)",
    "return ((grad_logits * (grad / labels.size).astype(z.dtype)).reshape(logits.shape),)",
)
def vocab_parallel_cross_entropy__squeezed():
    """Without axes of one: where a rank has one word, the last axis is that of the tokens."""


@loses(9)
@changes("comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)", "everyone.Allreduce(MPI.IN_PLACE, most, MPI.MAX)")
def vocab_parallel_cross_entropy__everyone():
    """The largest logit of all ranks: right, and other groups wait for it, or come with other shapes."""


@loses(9)
@changes(
    """
        grad_logits = soft.copy()
        grad_logits[(*here, mine[here])] -= 1
        return (grad_logits * (grad / labels.size).astype(z.dtype),)""",
    """
        z[...] = soft
        z[(*here, mine[here])] -= 1
        z[...] *= (grad / labels.size).astype(z.dtype)
        labels[...] = 0
        return (z,)""",
)
def vocab_parallel_cross_entropy__gradient_in_the_logits():
    """Backward writes the gradient over the logits, and clears the labels."""


@loses(5)
def copy_to_group__gradient_in_x(x, comm):
    """Backward leaves the gradient in the input's array."""

    def backward(grad):
        total = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), total)
        x.data[...] = total
        return (total,)

    return Tensor.from_operation(x.data.copy(), (x,), backward)


@loses(5)
def copy_to_group__halves_that_fit(x, comm):
    """A reduce-scatter and an all-gather, without padding."""

    def backward(grad):
        mine, total = np.empty(grad.size // comm.Get_size(), grad.dtype), np.empty(grad.shape, grad.dtype)
        comm.Reduce_scatter(np.ascontiguousarray(grad), mine)
        comm.Allgather(mine, total)
        return (total,)

    return Tensor.from_operation(x.data, (x,), backward)


@loses(5)
def copy_to_group__last_group(x, comm):
    """Backward takes the group of the last call."""
    copy_to_group.comm = comm

    def backward(grad):
        total = np.empty(grad.shape, grad.dtype)
        copy_to_group.comm.Allreduce(np.ascontiguousarray(grad), total)
        return (total,)

    return Tensor.from_operation(x.data, (x,), backward)


@loses(3)
def reduce_from_group__halves_that_fit(x, comm):
    """A reduce-scatter and an all-gather, without padding."""
    mine, total = np.empty(x.data.size // comm.Get_size(), x.dtype), np.empty_like(x.data)
    comm.Reduce_scatter(x.data, mine)
    comm.Allgather(mine, total)
    return Tensor.from_operation(total, (x,), lambda grad: (grad,))


@right
@changes(
    "    soft = z - most[..., None]\n",
    "",
    """
    found = soft[(*here, mine[here])].sum()
    np.exp(soft, out=soft)
    sums = np.append(soft.sum(axis=-1), found).astype(z.dtype)""",
    """
    found = (z - most[..., None])[(*here, mine[here])].sum()
    sums = np.append(np.exp(z - most[..., None]).sum(axis=-1), found).astype(z.dtype)""",
    "soft /= sums[:-1].reshape(labels.shape)[..., None]",
    "lse = most + np.log(sums[:-1]).reshape(most.shape)",
    "grad_logits = soft.copy()",
    "grad_logits = np.exp(z - lse[..., None])",
)
def vocab_parallel_cross_entropy__log_softmax():
    """Keeps the log of the whole sum, and takes exponentials only in the end."""


@loses(8)
def copy_to_group__blocking_sends(x, comm):
    """An all-reduce by messages, all sent before any is received: all wait for each other as soon as a part has more than 64 KB."""
    n, me = comm.Get_size(), comm.Get_rank()

    def swap(parts):
        came = np.empty_like(parts)
        came[me] = parts[me]
        for step in range(1, n):
            comm.Send(parts[(me + step) % n], dest=(me + step) % n)
        for step in range(1, n):
            comm.Recv(came[(me - step) % n], source=(me - step) % n)
        return came

    def backward(grad):
        size = -(-grad.size // n)
        parts = np.zeros((n, size), grad.dtype)
        parts.reshape(-1)[: grad.size] = grad.ravel()
        own = swap(parts).sum(axis=0)
        whole = swap(np.array([own] * n))
        return (whole.reshape(-1)[: grad.size].reshape(grad.shape),)

    return Tensor.from_operation(x.data, (x,), backward)


@loses(5)
@changes(
    "        total = np.empty(grad.shape, grad.dtype)\n        comm.Allreduce(np.ascontiguousarray(grad), total)",
    """
        if grad.flags.f_contiguous:
            total = np.empty(grad.shape[::-1], grad.dtype)
            comm.Allreduce(grad.T, total)
            return (total.T,)
        total = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(grad, total)""",
)
def copy_to_group__fortran_or_c_only():
    """Takes a gradient that is not in Fortran order for C-contiguous."""


@loses(5)
@changes(
    "        total = np.empty(grad.shape, grad.dtype)\n        comm.Allreduce(np.ascontiguousarray(grad), total)",
    """
        flat = grad.ravel(order="K")
        total = np.empty_like(flat)
        comm.Allreduce(np.ascontiguousarray(flat), total)
        reverse = grad.flags.f_contiguous and not grad.flags.c_contiguous
        total = total.reshape(grad.shape[::-1]).T if reverse else total.reshape(grad.shape)""",
)
def copy_to_group__order_in_memory():
    """Adds up in the order in memory, which may differ between the ranks."""


@loses(5)
@changes(
    "total = np.empty(grad.shape, grad.dtype)",
    "total = copy_to_group.__dict__.setdefault((comm, grad.shape, grad.dtype.char), np.empty(grad.shape, grad.dtype))",
)
def copy_to_group__a_buffer_for_each_group():
    """The next backward in the group changes the gradient."""


@loses(5)
@changes("    return Tensor.from_operation", "    comm.Barrier()\n    return Tensor.from_operation")
def copy_to_group__barrier():
    """Waits in forward until all are there."""


@loses(3)
@changes(
    "total = np.empty_like(x.data)",
    "total = reduce_from_group.__dict__.setdefault((comm, x.shape, x.dtype.char), np.empty_like(x.data))",
)
def reduce_from_group__a_buffer_for_each_group():
    """The next forward in the group changes the result."""


@loses(3)
@changes("lambda grad: (grad,)", "lambda grad: (comm.Barrier(), (grad,))[1]")
def reduce_from_group__barrier():
    """Waits in backward until all are there."""


@loses(5)
@changes(
    "        total = np.empty(grad.shape, grad.dtype)\n",
    "        if not grad.any():\n            return (grad,)\n        total = np.empty(grad.shape, grad.dtype)\n",
)
def copy_to_group__nothing_to_add():
    """A rank whose gradient is zero takes no part in the sum."""


@loses(3)
@changes(
    "    comm.Allreduce(x.data, total)\n",
    "    total[...] = x.data\n    if x.data.any():\n        comm.Allreduce(x.data, total)\n",
)
def reduce_from_group__nothing_to_add():
    """A rank whose term is zero takes no part in the sum."""


@loses(5)
@changes("np.ascontiguousarray(grad), total)", "np.ascontiguousarray(np.nan_to_num(grad)), total)")
def copy_to_group__no_nan():
    """Makes numbers of NaN in backward."""


@loses(3)
@changes(
    """
    return Tensor.from_operation(total,""",
    """
    total[np.abs(total) < np.finfo(total.dtype).tiny] = 0
    return Tensor.from_operation(total,""",
)
def reduce_from_group__no_subnormal_numbers():
    """Makes zeros of subnormal numbers."""


@loses(5)
@changes(
    "comm.Allreduce(np.ascontiguousarray(grad), total)",
    """for part, out in zip(np.ascontiguousarray(grad), total):
            comm.Allreduce(part, out)""",
)
def copy_to_group__row_by_row():
    """An all-reduce for each row."""


@loses(6)
@changes("soft.sum(axis=-1)", "(soft + 0 * (z - z.max(axis=-1, keepdims=True))).sum(axis=-1)")
def vocab_parallel_cross_entropy__no_masked_words():
    """Subtracts the largest of its own logits, which may be -inf, from each."""


@loses(5)
@changes("return (total,)", "return (total if grad.ndim else np.atleast_1d(total),)")
def copy_to_group__one_axis_at_least():
    """Gives a number without axes an axis."""


@loses(5)
@changes("np.empty(grad.shape, grad.dtype)", "np.empty((len(grad), *grad.shape[1:]), grad.dtype)")
def copy_to_group__first_axis():
    """Needs a first axis."""


@loses(3)
@changes("total = np.empty_like(x.data)", "total = np.empty((len(x.data), *x.shape[1:]), x.dtype)")
def reduce_from_group__first_axis():
    """Needs a first axis."""


@loses(3)
@changes("    comm.Allreduce(x.data, total)\n", "    comm.Allreduce(x.data, total)\n    total = np.atleast_1d(total)\n")
def reduce_from_group__one_axis_at_least():
    """Gives a number without axes an axis."""


@loses(6)
@changes("mine = labels - comm.Get_rank() * words", "mine = labels.astype(np.int16) - comm.Get_rank() * words")
def vocab_parallel_cross_entropy__labels_in_16_bits():
    """Labels in int16: a vocabulary of more than 32,768 words does not fit."""


@loses(6)
@changes("mine = labels - comm.Get_rank() * words", "mine = labels.astype(np.uint16).astype(int) - comm.Get_rank() * words")
def vocab_parallel_cross_entropy__unsigned_labels():
    """Labels in uint16: a vocabulary of more than 65,536 words does not fit."""


@loses(6)
@changes("mine = labels - comm.Get_rank() * words", "mine = (labels - comm.Get_rank() * words).astype(np.int16)")
def vocab_parallel_cross_entropy__places_in_16_bits():
    """The labels' places among the rank's own words in int16."""


@loses(6)
@changes("z, words = logits.data, logits.shape[-1]", "z, words = np.where(np.isnan(logits.data), 0, logits.data), logits.shape[-1]")
def vocab_parallel_cross_entropy__no_nan():
    """Makes zeros of NaN."""


@loses(6)
@changes(
    "most = z.max(axis=-1)",
    "most = np.nanmax(z, axis=-1, initial=-np.inf)",
    "soft[(*here, mine[here])].sum()",
    "np.nansum(soft[(*here, mine[here])])",
    "soft.sum(axis=-1)",
    "np.nansum(soft, axis=-1)",
)
def vocab_parallel_cross_entropy__leaves_nan_out():
    """Leaves NaN out of the maximum and of the sums."""


@loses(6)
@changes("most = z.max(axis=-1)", "most = np.nanmax(z, axis=-1, initial=-np.inf)", "soft.sum(axis=-1)", "np.nansum(soft, axis=-1)")
def vocab_parallel_cross_entropy__sees_nan_of_labels_only():
    """Leaves NaN out unless it is a label's."""


@loses(6)
@changes(
    "return (grad_logits * (grad / labels.size).astype(z.dtype),)",
    "return (np.nan_to_num(grad_logits) * (grad / labels.size).astype(z.dtype),)",
)
def vocab_parallel_cross_entropy__no_nan_in_backward():
    """Makes zeros of NaN in the gradient."""
