"""Answers to part 22: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# Lines of the solution, and the same in other words: many of the answers are changes of these.
CLIP = """
    found = [(p, kind) for _, p, kind in kinds(module) if p.grad is not None]
    squares = {True: 0.0, False: 0.0}
    for p, kind in found:
        squares[kind == replicated] += np.sum(p.grad.astype(np.float64) ** 2)
    parts = np.array([squares[False]])
    comm.Allreduce(MPI.IN_PLACE, parts)
    norm = float(np.sqrt(squares[True] + parts[0]))
    for p, _ in found:
        if norm > most:
            p.grad = p.grad * p.grad.dtype.type(most / norm)
    return norm"""
CLIP_IN_OTHER_WORDS = """
    squares = {True: 0.0, False: 0.0}
    found = [(kind == replicated, p) for _, p, kind in kinds(module) if p.grad is not None]
    for whole, p in found:
        squares[whole] += np.sum(p.grad.astype(np.float64) ** 2)
    parts = np.array([squares[False]])
    comm.Allreduce(MPI.IN_PLACE, parts)
    norm = float(np.sqrt(squares[True] + parts[0]))
    for _, p in found:
        if norm > most:
            p.grad = p.grad * p.grad.dtype.type(most / norm)
    return norm"""


@loses(6)
@changes("np.concatenate(parts, axis=1)", "parts.reshape(x.shape[0], n * x.shape[1], x.shape[2])")
def gather_sequence__in_memory():
    """Puts the parts one after the other in memory."""


@loses(6)
@changes("np.concatenate(parts, axis=1)", "np.concatenate(parts, axis=0)")
def gather_sequence__along_the_batch():
    """Along the batch."""


@loses(6)
@changes(
    'comm.Reduce_scatter(np.array(np.split(grad, n, axis=1), order="C"), mine)',
    "mine[...] = np.split(grad, n, axis=1)[comm.Get_rank()]",
)
def gather_sequence__own_gradient():
    """Takes its own slice of a partial gradient for the sum (a bug of real systems)."""


@loses(6)
@changes("return (mine,)", "return (mine / mine.dtype.type(n),)")
def gather_sequence__mean():
    """Averages where it must sum (a bug of real systems)."""


@loses(6)
@changes('np.array(np.split(grad, n, axis=1), order="C")', "np.ascontiguousarray(grad)")
def gather_sequence__unsplit_back():
    """Scatters the memory, not the positions."""


@loses(4)
@changes(
    '        comm.Reduce_scatter(np.array(np.split(grad, n, axis=1), order="C"), mine)',
    """
        total = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), total)
        mine[...] = np.split(total, n, axis=1)[comm.Get_rank()]""",
)
def gather_sequence__all_reduces():
    """Sums all positions on all ranks, and takes its own: right, and twice as much on the wire."""


@loses(4)
@changes('np.array(np.split(grad, n, axis=1), order="C")', "np.stack(np.split(grad, n, axis=1))")
def gather_sequence__contiguous_only():
    """Fails where the gradient is a view."""


@loses(4)
def gather_sequence__double(x, comm):
    """Another dtype."""
    n = comm.Get_size()
    parts = np.empty((n, *x.shape))
    comm.Allgather(np.array(x.data, np.float64, order="C"), parts)

    def backward(grad):
        mine = np.empty(x.shape)
        comm.Reduce_scatter(np.array(np.split(grad, n, axis=1), np.float64, order="C"), mine)
        return (mine,)

    return Tensor.from_operation(np.concatenate(parts, axis=1), (x,), backward)


@loses(6)
@changes("return Tensor.from_operation(np.concatenate(parts, axis=1), (x,), backward)", "return Tensor(np.concatenate(parts, axis=1))")
def gather_sequence__no_graph():
    """A tensor that was made from nothing."""


@loses(6)
@changes("np.concatenate(parts, axis=1)", "np.concatenate(parts[::-1], axis=1)")
def gather_sequence__backwards():
    """The ranks in reverse."""


@loses(6)
@changes(
    'comm.Reduce_scatter(np.array(np.split(grad, n, axis=1), order="C"), mine)',
    'comm.Reduce_scatter(np.array(np.split(grad, n, axis=1), order="C"), mine, None, MPI.MAX)',
)
def gather_sequence__largest():
    """The largest of the summands."""


@right
def gather_sequence__transposed(x, comm):
    """With the positions in front."""
    n = comm.Get_size()
    front = np.ascontiguousarray(x.data.swapaxes(0, 1))
    whole = np.empty((n * front.shape[0], *front.shape[1:]), x.dtype)
    comm.Allgather(front, whole)

    def backward(grad):
        mine = np.empty(front.shape, grad.dtype)
        comm.Reduce_scatter(np.array(grad.swapaxes(0, 1), order="C"), mine)
        return (mine.swapaxes(0, 1),)

    return Tensor.from_operation(np.ascontiguousarray(whole.swapaxes(0, 1)), (x,), backward)


@right
@changes(
    '        comm.Reduce_scatter(np.array(np.split(grad, n, axis=1), order="C"), mine)',
    """
        sent = np.array(np.split(grad, n, axis=1), order="C")
        got = np.empty_like(sent)
        comm.Alltoall(sent, got)
        mine = got.sum(axis=0)""",
)
def gather_sequence__messages():
    """With an all-to-all of the summands, and a sum."""


@right
@changes("comm.Allgather(np.ascontiguousarray(x.data), parts)", "comm.Iallgather(np.ascontiguousarray(x.data), parts).Wait()")
def gather_sequence__non_blocking():
    """Starts, and waits."""


@loses(5)
@changes('np.array(np.split(x.data, n, axis=1), order="C")', "np.ascontiguousarray(x.data)")
def scatter_sequence__in_memory():
    """Scatters the memory, not the positions."""


@loses(5)
@changes(
    'comm.Reduce_scatter(np.array(np.split(x.data, n, axis=1), order="C"), mine)',
    "mine[...] = np.split(x.data, n, axis=1)[comm.Get_rank()]",
)
def scatter_sequence__own_summand():
    """Keeps its own summand's positions: adds nothing up."""


@loses(5)
@changes("return Tensor.from_operation(mine, (x,), backward)", "return Tensor.from_operation(mine / mine.dtype.type(n), (x,), backward)")
def scatter_sequence__mean():
    """Averages where it must sum."""


@loses(5)
@changes(
    "        return (np.concatenate(parts, axis=1),)",
    """
        whole = np.zeros(x.shape, grad.dtype)
        whole[:, comm.Get_rank() * mine.shape[1] : (comm.Get_rank() + 1) * mine.shape[1]] = grad
        return (whole,)""",
)
def scatter_sequence__zeros_back():
    """On the way back, only its own positions have a gradient."""


@loses(5)
@changes("return (np.concatenate(parts, axis=1),)", "return (np.concatenate(parts, axis=1) / grad.dtype.type(n),)")
def scatter_sequence__shares_back():
    """Divides the gradient among the summands."""


@loses(5)
@changes("return (np.concatenate(parts, axis=1),)", "return (np.concatenate(parts, axis=1) * grad.dtype.type(n),)")
def scatter_sequence__times_the_ranks():
    """The gradient times the size of the group (a bug of real systems)."""


@loses(3)
@changes(
    '    comm.Reduce_scatter(np.array(np.split(x.data, n, axis=1), order="C"), mine)',
    """
    total = np.empty(x.shape, x.dtype)
    comm.Allreduce(np.ascontiguousarray(x.data), total)
    mine[...] = np.split(total, n, axis=1)[comm.Get_rank()]""",
)
def scatter_sequence__all_reduces():
    """An all-reduce, and its own positions: right, and twice as much on the wire."""


@loses(5)
@changes("return (np.concatenate(parts, axis=1),)", "return (parts.reshape(x.shape),)")
def scatter_sequence__back_in_memory():
    """Gathers the gradient one after the other in memory."""


@loses(3)
@changes("comm.Allgather(np.ascontiguousarray(grad), parts)", "comm.Allgather(grad, parts)")
def scatter_sequence__contiguous_only():
    """Fails where the gradient is a view."""


@loses(5)
@changes("np.split(x.data, n, axis=1)", "np.roll(np.split(x.data, n, axis=1), -1, axis=0)")
def scatter_sequence__next_one():
    """The positions of the next rank."""


@right
@changes(
    'comm.Reduce_scatter(np.array(np.split(x.data, n, axis=1), order="C"), mine)',
    'comm.Reduce_scatter(np.array(np.split(x.data, n, axis=1), order="C"), mine, [mine.size] * n)',
)
def scatter_sequence__counts():
    """Says the counts."""


@right
def scatter_sequence__positions_in_front(x, comm):
    """With the positions in front."""
    n, (batch, positions, width) = comm.Get_size(), x.shape
    mine = np.empty((positions // n, batch, width), x.dtype)
    comm.Reduce_scatter(np.array(x.data.transpose(1, 0, 2), order="C"), mine)

    def backward(grad):
        whole = np.empty((positions, batch, width), grad.dtype)
        comm.Allgather(np.array(grad.transpose(1, 0, 2), order="C"), whole)
        return (whole.transpose(1, 0, 2),)

    return Tensor.from_operation(mine.transpose(1, 0, 2).copy(), (x,), backward)


@right
@changes(
    '    comm.Reduce_scatter(np.array(np.split(x.data, n, axis=1), order="C"), mine)',
    """
    sent = [np.ascontiguousarray(part) for part in np.split(x.data, n, axis=1)]
    requests = [comm.Isend(sent[r], r) for r in range(n) if r != comm.Get_rank()]
    mine[...] = sent[comm.Get_rank()]
    for r in range(n):
        if r != comm.Get_rank():
            came = np.empty_like(mine)
            comm.Recv(came, r)
            mine += came
    for request in requests:
        request.Wait()""",
)
def scatter_sequence__ring():
    """Each rank sends its summands to their owners."""


@loses(5)
def reduce_norm_gradients__nothing(module, comm):
    """Leaves them partial: LayerNorm's gradients differ between the ranks (a bug of real systems)."""
    pass


@loses(5)
def reduce_norm_gradients__mean(module, comm):
    """Averages where it must sum (a bug of real systems)."""
    for name, p, kind in kinds(module):
        if kind == replicated and p.grad is not None:
            comm.Allreduce(MPI.IN_PLACE, p.grad)
            p.grad /= p.grad.dtype.type(comm.Get_size())


@loses(5)
def reduce_norm_gradients__sharded_ones(module, comm):
    """Adds up the others."""
    for name, p, kind in kinds(module):
        if kind != replicated and p.grad is not None:
            comm.Allreduce(MPI.IN_PLACE, p.grad)


@loses(5)
def reduce_norm_gradients__weights_only(module, comm):
    """Forgets the shifts."""
    for name, p, kind in kinds(module):
        if kind == replicated and p is not None and p.grad is not None and p.grad.ndim > 1 and p.grad is not None:
            comm.Allreduce(MPI.IN_PLACE, p.grad)


@loses(5)
def reduce_norm_gradients__first_only(module, comm):
    """Returns after the first one."""
    for name, p, kind in kinds(module):
        if kind == replicated and p.grad is not None:
            comm.Allreduce(MPI.IN_PLACE, p.grad)
            break


@loses(5)
def reduce_norm_gradients__everyone(module, comm):
    """Over all ranks, whatever the group."""
    for name, p, kind in kinds(module):
        if kind == replicated and p.grad is not None:
            everyone.Allreduce(MPI.IN_PLACE, p.grad)


@loses(5)
def reduce_norm_gradients__lost(module, comm):
    """Puts the sum into an array that nobody has."""
    for name, p, kind in kinds(module):
        if kind == replicated and p.grad is not None:
            total = np.empty_like(p.grad)
            comm.Allreduce(p.grad, total)


@loses(5)
def reduce_norm_gradients__broadcast(module, comm):
    """All take the first rank's: equal, and wrong."""
    for name, p, kind in kinds(module):
        if kind == replicated and p.grad is not None:
            comm.Bcast(p.grad, root=0)


@loses(3)
def reduce_norm_gradients__none(module, comm):
    """Fails where a parameter has no gradient."""
    for name, p, kind in kinds(module):
        if kind == replicated:
            comm.Allreduce(MPI.IN_PLACE, p.grad)


@loses(3)
def reduce_norm_gradients__double(module, comm):
    """Another dtype."""
    for name, p, kind in kinds(module):
        if kind == replicated and p.grad is not None:
            p.grad = p.grad.astype(np.float64)
            comm.Allreduce(MPI.IN_PLACE, p.grad)


@right
def reduce_norm_gradients__flat(module, comm):
    """All in one all-reduce."""
    mine = [p for _, p, kind in kinds(module) if kind == replicated and p.grad is not None]
    if mine:
        flat = np.concatenate([p.grad.ravel() for p in mine])
        comm.Allreduce(MPI.IN_PLACE, flat)
        for p, part in zip(mine, np.split(flat, np.cumsum([p.grad.size for p in mine])[:-1])):
            p.grad = part.reshape(p.shape)


@right
def reduce_norm_gradients__fresh(module, comm):
    """Into fresh arrays."""
    for name, p, kind in kinds(module):
        if kind == replicated and p.grad is not None:
            total = np.zeros(p.grad.shape, p.grad.dtype)
            comm.Allreduce(p.grad, total)
            p.grad = total


@right
def reduce_norm_gradients__not_sharded(module, comm):
    """Asks the other way round, and starts all before it waits."""
    started = []
    for _, p, kind in kinds(module):
        if kind.name == "sharded" or p.grad is None:
            continue
        total = np.empty_like(p.grad)
        started.append((p, total, comm.Iallreduce(p.grad, total)))
    for p, total, request in started:
        request.Wait()
        p.grad = total


@loses(3)
@changes("    comm.Allreduce(MPI.IN_PLACE, parts)\n", "")
def clip_gradients__local():
    """By a norm that was not reduced (a bug of real systems)."""


@loses(3)
@changes(
    CLIP,
    CLIP_IN_OTHER_WORDS,
    "squares[whole] += np.sum(p.grad.astype(np.float64) ** 2)",
    "squares[False] += np.sum(p.grad.astype(np.float64) ** 2)",
)
def clip_gradients__all_squares():
    """Adds up the replicated ones' squares, too."""


@loses(3)
@changes(CLIP, CLIP_IN_OTHER_WORDS, "norm = float(np.sqrt(squares[True] + parts[0]))", "norm = float(np.sqrt(parts[0]))")
def clip_gradients__sharded_only():
    """Forgets the replicated ones."""


@loses(3)
@changes(
    CLIP,
    CLIP_IN_OTHER_WORDS,
    "squares[whole] += np.sum(p.grad.astype(np.float64) ** 2)",
    "squares[whole] += np.sqrt(np.sum(p.grad.astype(np.float64) ** 2))",
    "norm = float(np.sqrt(squares[True] + parts[0]))",
    "norm = float(squares[True] + parts[0])",
)
def clip_gradients__norms():
    """Adds up norms, not squares."""


@loses(3)
@changes(CLIP, CLIP_IN_OTHER_WORDS, "if norm > most:", "if True:")
def clip_gradients__always():
    """Scales also where the norm is small enough."""


@loses(3)
@changes(
    CLIP,
    CLIP_IN_OTHER_WORDS,
    """
        if norm > most:
            p.grad = p.grad * p.grad.dtype.type(most / norm)""",
    "        pass",
)
def clip_gradients__never():
    """Does not scale."""


@loses(3)
def clip_gradients__each(module, most, comm):
    """Clips each gradient by itself."""
    squares = {True: 0.0, False: 0.0}
    found = [(kind == replicated, p) for _, p, kind in kinds(module) if p.grad is not None]
    for whole, p in found:
        squares[whole] += np.sum(p.grad.astype(np.float64) ** 2)
    parts = np.array([squares[False]])
    comm.Allreduce(MPI.IN_PLACE, parts)
    norm = float(np.sqrt(squares[True] + parts[0]))
    for _, p in found:
        own = np.sqrt(np.sum(p.grad**2))
        if own > most:
            p.grad = p.grad * p.grad.dtype.type(most / own)
    return norm


@loses(3)
@changes(CLIP, CLIP_IN_OTHER_WORDS, "return norm", "return norm**2")
def clip_gradients__squared():
    """Returns the square of the norm."""


@loses(3)
@changes(CLIP, CLIP_IN_OTHER_WORDS, "return norm", "return min(norm, most)")
def clip_gradients__after():
    """Returns the norm after clipping."""


@loses(3)
@changes(
    CLIP,
    CLIP_IN_OTHER_WORDS,
    "squares[whole] += np.sum(p.grad.astype(np.float64) ** 2)",
    "squares[whole] += np.max(np.abs(p.grad)) ** 2",
)
def clip_gradients__largest():
    """The largest number, and not the root of the squares."""


@loses(3)
@changes(CLIP, CLIP_IN_OTHER_WORDS, "if norm > most:", "if norm > most and not _:")
def clip_gradients__shards_only_scaled():
    """Scales only the sharded ones: the replicated ones stay long."""


@right
def clip_gradients__at_the_end(module, most, comm):
    """One all-reduce of two numbers, of which one is divided."""
    squares = np.zeros(2)
    gradients = [(p, kind) for _, p, kind in kinds(module) if p.grad is not None]
    for p, kind in gradients:
        squares[int(kind == replicated)] += float((p.grad.astype(np.float64) ** 2).sum())
    comm.Allreduce(MPI.IN_PLACE, squares)
    norm = float(np.sqrt(squares[0] + squares[1] / comm.Get_size()))
    factor = most / norm if norm > most else 1.0
    for p, _ in gradients:
        p.grad *= p.grad.dtype.type(factor)
    return norm


@right
@changes(CLIP, CLIP_IN_OTHER_WORDS, "norm = float(np.sqrt(squares[True] + parts[0]))", "norm = np.sqrt(squares[True] + parts[0])")
def clip_gradients__numpy_float():
    """Returns NumPy's number."""


@right
def clip_gradients__one_by_one(module, most, comm):
    """An all-reduce for each sharded parameter."""
    total = 0.0
    for _, p, kind in kinds(module):
        if p.grad is None:
            continue
        square = np.array([np.linalg.norm(p.grad.astype(np.float64)) ** 2])
        if kind != replicated:
            comm.Allreduce(MPI.IN_PLACE, square)
        total += square[0]
    norm = total**0.5
    for p in module.parameters():
        if p.grad is not None and norm > most:
            p.grad = (p.grad * (most / norm)).astype(p.grad.dtype)
    return norm


@loses(3)
def reduce_norm_gradients__by_shape(module, comm):
    """Takes each vector for a replicated one."""
    for name, p, kind in kinds(module):
        if p.grad is not None and p.grad.ndim == 1:
            comm.Allreduce(MPI.IN_PLACE, p.grad)


@loses(3)
def reduce_norm_gradients__twice(module, comm):
    """Adds up a parameter with two names twice."""
    of = {id(p): kind for _, p, kind in kinds(module)}
    for name, p in module.named_parameters():
        kind = of[id(p)]
        if kind == replicated and p.grad is not None:
            comm.Allreduce(MPI.IN_PLACE, p.grad)


@loses(3)
def reduce_norm_gradients__all_sharded(module, comm):
    """Fails where nothing is replicated."""
    mine = [p for _, p, kind in kinds(module) if kind == replicated and p.grad is not None]
    flat = np.concatenate([p.grad.ravel() for p in mine])
    comm.Allreduce(MPI.IN_PLACE, flat)
    start = 0
    for p in mine:
        p.grad = flat[start : start + p.grad.size].reshape(p.shape)
        start += p.grad.size


@loses(3)
def reduce_norm_gradients__parameters(module, comm):
    """Adds up the parameters, too."""
    for name, p, kind in kinds(module):
        if kind == replicated and p.grad is not None:
            comm.Allreduce(MPI.IN_PLACE, p.grad)
            comm.Allreduce(MPI.IN_PLACE, p.data)


@loses(3)
@changes("kind == replicated", "p.grad.ndim == 1")
def clip_gradients__by_shape():
    """Takes each vector for a replicated one."""


@loses(3)
@changes(
    CLIP,
    CLIP_IN_OTHER_WORDS,
    "found = [(kind == replicated, p) for _, p, kind in kinds(module) if p.grad is not None]",
    "found = [(next(k for _, q, k in kinds(module) if q is p) == replicated, p) for _, p in module.named_parameters() if p.grad is not None]",
)
def clip_gradients__twice():
    """Counts a parameter with two names twice."""


@loses(3)
@changes(
    CLIP,
    CLIP_IN_OTHER_WORDS,
    """
        if norm > most:
            p.grad = p.grad * p.grad.dtype.type(most / norm)""",
    "        p.grad = p.grad * p.grad.dtype.type(min(1.0, most / norm))",
)
def clip_gradients__zero():
    """Divides by a norm of 0."""


@loses(3)
@changes(
    CLIP,
    CLIP_IN_OTHER_WORDS,
    "            p.grad = p.grad * p.grad.dtype.type(most / norm)",
    """
            p.data = p.data * p.grad.dtype.type(most / norm)
            p.grad = p.grad * p.grad.dtype.type(most / norm)""",
)
def clip_gradients__parameters():
    """Makes the parameters shorter, too."""


@loses(3)
@changes(
    CLIP,
    CLIP_IN_OTHER_WORDS,
    "        squares[whole] += np.sum(p.grad.astype(np.float64) ** 2)",
    """
        square = p.grad.astype(np.float64) ** 2
        if not whole:
            comm.Allreduce(MPI.IN_PLACE, square)
        squares[True] += square.sum()""",
)
def clip_gradients__sends_squares():
    """Adds up the squares of whole gradients."""


@right
@changes(
    CLIP,
    CLIP_IN_OTHER_WORDS,
    "p.grad = p.grad * p.grad.dtype.type(most / norm)",
    "p.grad = p.grad * p.grad.dtype.type(most / (norm + 1e-6))",
)
def clip_gradients__as_others_do():
    """With a small number below, as other frameworks have it."""


@loses(4)
def gather_sequence__hook_on_x(x, comm):
    """A hook on its input: takes all that comes to x, from elsewhere, too."""
    n = comm.Get_size()
    parts = np.empty((n, *x.shape), x.dtype)
    comm.Allgather(np.ascontiguousarray(x.data), parts)
    kept = []

    def backward(grad):
        kept.append(grad)
        return (np.zeros(x.shape, x.dtype),)

    def whole(grad):
        mine = np.empty(x.shape, grad.dtype)
        total = np.array(np.split(kept[0], n, axis=1), order="C")
        comm.Reduce_scatter(total, mine)
        return mine

    if x.requires_grad:
        x.register_hook(whole)
    return Tensor.from_operation(np.concatenate(parts, axis=1), (x,), backward)


@loses(6)
@changes(
    '        comm.Reduce_scatter(np.array(np.split(grad, n, axis=1), order="C"), mine)',
    """
        total = np.array(grad, order="C")
        parts = np.array(np.split(total, n, axis=1), order="C")
        got = np.empty_like(parts)
        comm.Allgather(parts[(everyone.Get_rank() + 1) % n], got)
        comm.Reduce_scatter(parts, mine)
        at = everyone.Get_rank() % n
        back = np.empty((n, *mine.shape), mine.dtype)
        comm.Allgather(mine, back)
        mine = back[at].copy()""",
)
def gather_sequence__rank_in_everyone():
    """Takes its place among all ranks for that in the group."""


@loses(6)
@changes(
    "    return Tensor.from_operation(np.concatenate(parts, axis=1), (x,), backward)",
    """
    whole = np.concatenate(parts, axis=1)
    kept = gather_sequence.__dict__.setdefault((whole.shape, whole.dtype), whole)
    kept[...] = whole
    return Tensor.from_operation(kept, (x,), backward)""",
)
def gather_sequence__one_buffer():
    """Keeps one array for all results."""


@loses(3)
@changes(
    "    return Tensor.from_operation(mine, (x,), backward)",
    """
    kept = scatter_sequence.__dict__.setdefault((mine.shape, mine.dtype), mine)
    kept[...] = mine
    return Tensor.from_operation(kept, (x,), backward)""",
)
def scatter_sequence__one_buffer():
    """Keeps one array for all results."""


@loses(3)
@changes(
    "        return (np.concatenate(parts, axis=1),)",
    """
        x.data[...] = np.concatenate(parts, axis=1)
        return (x.data,)""",
)
def scatter_sequence__writes_input_back():
    """Backward leaves the gradient in the input's array."""


@loses(6)
def gather_sequence__sends_then_receives(x, comm):
    """A ring of blocking sends, all before the receives: all wait for each other as soon as x has more than 64 KB."""
    n, me = comm.Get_size(), comm.Get_rank()

    def swap(parts):
        came = np.empty_like(parts)
        came[me] = parts[me]
        for step in range(1, n):
            comm.Send(parts[(me + step) % n], dest=(me + step) % n)
        for step in range(1, n):
            comm.Recv(came[(me - step) % n], source=(me - step) % n)
        return came

    parts = swap(np.array([x.data] * n, order="C"))

    def backward(grad):
        return (swap(np.array(np.split(grad, n, axis=1), order="C")).sum(axis=0),)

    return Tensor.from_operation(np.concatenate(parts, axis=1), (x,), backward)


@loses(3)
def clip_gradients__sharded_always_there(module, most, comm):
    """Asks only of the replicated ones whether they have a gradient."""
    whole = parts = 0.0
    for _, p, kind in kinds(module):
        if kind == replicated:
            if p.grad is not None:
                whole += np.sum(p.grad.astype(np.float64) ** 2)
        else:
            parts += np.sum(p.grad.astype(np.float64) ** 2)
    parts = np.array([parts])
    comm.Allreduce(MPI.IN_PLACE, parts)
    norm = float(np.sqrt(whole + parts[0]))
    if norm > most:
        for _, p, _ in kinds(module):
            if p.grad is not None:
                p.grad = p.grad * p.grad.dtype.type(most / norm)
    return norm


@loses(3)
def clip_gradients__flat_nothing_replicated(module, most, comm):
    """Fails where nothing is replicated, or nothing sharded."""
    whole = np.concatenate([p.grad.ravel() for _, p, kind in kinds(module) if kind == replicated and p.grad is not None])
    own = np.concatenate([p.grad.ravel() for _, p, kind in kinds(module) if kind != replicated and p.grad is not None])
    parts = np.array([float(own.astype(np.float64) @ own)])
    comm.Allreduce(MPI.IN_PLACE, parts)
    norm = float(np.sqrt(float(whole.astype(np.float64) @ whole) + parts[0]))
    if norm > most:
        for _, p, _ in kinds(module):
            if p.grad is not None:
                p.grad = p.grad * p.grad.dtype.type(most / norm)
    return norm
