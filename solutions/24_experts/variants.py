"""Answers to part 24: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# Lines of the solution, and the same in other words: several answers are changes of these.
DISPATCH = """
    n, width = comm.Get_size(), x.shape[1]
    parts = into_slots(x, route).reshape(n, -1, route.capacity, width)
    slots = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    return slots.transpose(1, 0, 2, 3).reshape(slots.shape[1], -1, width)"""
DISPATCH_WITH_ROWS = """
    rows = np.full((route.experts, route.capacity), len(x))  # index of a row of zeros
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, x.shape[1]), x.dtype))])
    parts = embedding(padded, rows.reshape(comm.Get_size(), -1, route.capacity))
    slots = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    return slots.transpose(1, 0, 2, 3).reshape(slots.shape[1], -1, x.shape[1])"""
DISPATCH_IN_OTHER_WORDS = """
    def all_to_all(parts, comm):
        return Tensor.from_operation(swap(parts.data), (parts,), lambda grad: (swap(grad),))

    tokens, width = x.shape
    rows = np.full((route.experts, route.capacity), tokens)
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, width), x.dtype))])
    parts = embedding(padded, rows.reshape(comm.Get_size(), -1, route.capacity))
    slots = all_to_all(parts, comm).transpose(1, 0, 2, 3)
    return slots.reshape(slots.shape[0], -1, width)"""
DISPATCH_BY_HAND = """
    n = comm.Get_size()
    token, choice = np.nonzero(route.place >= 0)
    at = route.expert[token, choice], route.place[token, choice]
    sent = np.zeros((route.experts, route.capacity, x.shape[1]), x.dtype)
    sent[at] = x.data[token]
    came = swap(sent.reshape(n, -1, route.capacity, x.shape[1]))
    out = came.swapaxes(0, 1).reshape(came.shape[1], -1, x.shape[1])

    def backward(g):
        back = swap(g.reshape(len(g), n, -1, g.shape[2]).swapaxes(0, 1)).reshape(sent.shape)
        dx = np.zeros_like(x.data)
        np.add.at(dx, token, back[at])
        return (dx,)

    return Tensor.from_operation(out, (x,), backward)"""
COMBINE = """
    capacity, width = route.capacity, y.shape[2]
    parts = y.reshape(len(y), -1, capacity, width).transpose(1, 0, 2, 3)
    came = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    found = from_slots(came.reshape(-1, capacity, width), route)
    return (found * route.weight.reshape(*route.weight.shape, 1)).sum(axis=1)"""
COMBINE_WITH_ROWS = """
    parts = y.reshape(len(y), -1, route.capacity, y.shape[2]).transpose(1, 0, 2, 3)
    came = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    rows = route.expert * route.capacity + np.maximum(route.place, 0)
    gates = route.weight * (route.place >= 0)
    found = embedding(came.reshape(-1, y.shape[2]), rows)
    return (found * gates.reshape(*rows.shape, 1)).sum(axis=1)"""
COMBINE_IN_OTHER_WORDS = """
    def all_to_all(parts, comm):
        return Tensor.from_operation(swap(parts.data), (parts,), lambda grad: (swap(grad),))

    width, capacity = y.shape[2], route.capacity
    parts = y.reshape(len(y), -1, capacity, width).transpose(1, 0, 2, 3)
    slots = all_to_all(parts, comm).reshape(-1, width)
    rows = route.expert * capacity + np.maximum(route.place, 0)
    gates = route.weight * (route.place >= 0)
    return (embedding(slots, rows) * gates.reshape(*rows.shape, 1)).sum(axis=1)"""
COMBINE_BY_HAND = """
    n, width = comm.Get_size(), y.shape[2]
    came = swap(y.data.reshape(len(y), n, -1, width).swapaxes(0, 1)).reshape(route.experts, route.capacity, width)
    kept = route.place >= 0
    found = came[route.expert, route.place] * kept[..., None]
    out = (found * route.weight.data[..., None]).sum(axis=1)

    def backward(g):
        dgates = (found * g[:, None]).sum(axis=2)
        back = np.zeros_like(came)
        t, c = np.nonzero(kept)
        back[route.expert[t, c], route.place[t, c]] = g[t] * route.weight.data[t, c, None]
        dy = swap(back.reshape(n, -1, route.capacity, width)).swapaxes(0, 1).reshape(y.shape)
        return dy, dgates

    return Tensor.from_operation(out, (y, route.weight), backward)"""
# How the solution exchanges, and how two answers do.
SWAP = """
    def swap(sent):
        came = np.empty(sent.shape, sent.dtype)
        comm.Alltoall(np.ascontiguousarray(sent), came)"""
SENDS_THEN_RECEIVES = """
    n, me = comm.Get_size(), comm.Get_rank()

    def swap(sent):
        sent = np.ascontiguousarray(sent)
        came = np.empty_like(sent)
        came[me] = sent[me]
        for other in range(n):
            if other != me:
                comm.Send(sent[other], dest=other)
        for other in range(n):
            if other != me:
                comm.Recv(came[other], source=other)"""


@loses(8)
def route__second_choices_first(logits, topk, capacity):
    """Fills the slots token by token, each with all its choices."""
    chances = softmax(logits)
    expert = np.argsort(-chances.data, axis=1, kind="stable")[:, :topk]
    weight = take(chances, expert)
    if topk > 1:
        weight = weight / weight.sum(axis=1).reshape(-1, 1)
    place, taken = np.full(expert.shape, -1), np.zeros(logits.shape[1], int)
    for t in range(len(expert)):
        for k in range(topk):
            e = expert[t, k]
            place[t, k] = taken[e] if taken[e] < capacity else -1
            taken[e] += 1
    return Route(expert, place, weight, logits.shape[1], capacity)


@loses(8)
def route__last_choices_first(logits, topk, capacity):
    """Gives slots to second choices before first ones."""
    chances = softmax(logits)
    expert = np.argsort(-chances.data, axis=1, kind="stable")[:, :topk]
    weight = take(chances, expert)
    if topk > 1:
        weight = weight / weight.sum(axis=1).reshape(-1, 1)
    place, taken = np.full(expert.shape, -1), np.zeros(logits.shape[1], int)
    for k in reversed(range(topk)):
        for t in range(len(expert)):
            e = expert[t, k]
            place[t, k] = taken[e] if taken[e] < capacity else -1
            taken[e] += 1
    return Route(expert, place, weight, logits.shape[1], capacity)


@loses(8)
def route__shared_slots(logits, topk, capacity):
    """Counts each choice by itself: two tokens share a slot."""
    chances = softmax(logits)
    expert = np.argsort(-chances.data, axis=1, kind="stable")[:, :topk]
    weight = take(chances, expert)
    if topk > 1:
        weight = weight / weight.sum(axis=1).reshape(-1, 1)
    hot = expert[:, :, None] == np.arange(logits.shape[1])
    place = np.take_along_axis(np.cumsum(hot, axis=0) - 1, expert[:, :, None], axis=2)[..., 0]
    return Route(expert, np.where(place < capacity, place, -1), weight, logits.shape[1], capacity)


@loses(8)
@changes("taken[e] if taken[e] < capacity else -1", "min(taken[e], capacity - 1) if taken[e] <= capacity else -1")
def route__one_slot_more():
    """Capacity off by one, the last slot clipped: two tokens share it."""


@loses(8)
@changes("place[t, k] = taken[e] if taken[e] < capacity else -1", "place[t, k] = taken[e] if taken[e] < capacity - 1 else -1")
def route__one_slot_less():
    """Leaves the last slot empty."""


@loses(8)
@changes("place[t, k] = taken[e] if taken[e] < capacity else -1", "place[t, k] = taken[e] % capacity")
def route__wraps_around():
    """A full expert begins again with its first slot."""


@loses(6)
@changes(
    "weight = take(chances, expert)",
    "weight = np.take_along_axis(chances.data, expert, axis=1)",
    "weight = weight / weight.sum(axis=1).reshape(-1, 1)",
    "weight = weight / weight.sum(axis=1, keepdims=True)",
    "return Route(expert, place, weight, logits.shape[1], capacity)",
    "return Route(expert, place, Tensor(weight), logits.shape[1], capacity)",
)
def route__no_gradient():
    """Gates made of .data: the router learns nothing."""


@loses(6)
@changes("weight = weight / weight.sum(axis=1).reshape(-1, 1)", "weight = weight / weight.data.sum(axis=1, keepdims=True)")
def route__constant_sum():
    """Divides by a sum that backward takes for fixed."""


@loses(6)
def route__sum_of_the_kept(logits, topk, capacity):
    """Divides after dropping: a token with one choice left gets a gate of 1."""
    chances = softmax(logits)
    expert = np.argsort(-chances.data, axis=1, kind="stable")[:, :topk]
    place, taken = np.full(expert.shape, -1), np.zeros(logits.shape[1], int)
    for k, t in np.ndindex(topk, len(expert)):
        e = expert[t, k]
        place[t, k] = taken[e] if taken[e] < capacity else -1
        taken[e] += 1
    weight = take(chances, expert)
    if topk > 1:
        weight = weight * (place >= 0)
        weight = weight / (weight.sum(axis=1).reshape(-1, 1) + 1e-9)
    return Route(expert, place, weight, logits.shape[1], capacity)


@loses(6)
def route__not_divided(logits, topk, capacity):
    """The probabilities themselves, also for topk > 1."""
    chances = softmax(logits)
    expert = np.argsort(-chances.data, axis=1, kind="stable")[:, :topk]
    place, taken = np.full(expert.shape, -1), np.zeros(logits.shape[1], int)
    for k, t in np.ndindex(topk, len(expert)):
        e = expert[t, k]
        place[t, k] = taken[e] if taken[e] < capacity else -1
        taken[e] += 1
    return Route(expert, place, take(chances, expert), logits.shape[1], capacity)


@loses(6)
def route__softmax_of_the_chosen(logits, topk, capacity):
    """Softmax over the topk only: with topk 1 the gate is 1, and the router learns nothing."""
    expert = np.argsort(-logits.data, axis=1, kind="stable")[:, :topk]
    place, taken = np.full(expert.shape, -1), np.zeros(logits.shape[1], int)
    for k, t in np.ndindex(topk, len(expert)):
        e = expert[t, k]
        place[t, k] = taken[e] if taken[e] < capacity else -1
        taken[e] += 1
    return Route(expert, place, softmax(take(logits, expert)), logits.shape[1], capacity)


@loses(4)
@changes('np.argsort(-chances.data, axis=1, kind="stable")', 'np.argsort(chances.data, axis=1, kind="stable")[:, ::-1]')
def route__ties_to_the_higher():
    """Sorts upwards and turns round: of equal experts the higher number."""


@loses(10)
@changes(
    'expert = np.argsort(-chances.data, axis=1, kind="stable")[:, :topk]',
    'expert = np.ascontiguousarray(np.argsort(-chances.data, axis=1, kind="stable")[:, :topk][:, ::-1])',
)
def route__smallest_first():
    """The topk in ascending order."""


@loses(10)
def route__four_values(logits, topk, capacity):
    """A tuple instead of a Route."""
    chances = softmax(logits)
    expert = np.argsort(-chances.data, axis=1, kind="stable")[:, :topk]
    return expert, np.zeros_like(expert), take(chances, expert)


@right
def route__cumulative_sums(logits, topk, capacity):
    """GShard's way, with cumulative sums; gates in one operation with a backward of its own."""
    z = logits.data - logits.data.max(axis=1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    experts, rows = p.shape[1], np.arange(len(p))[:, None]
    expert = np.lexsort((np.arange(experts) + 0 * p, -p), axis=1)[:, :topk]
    hot = (expert.T.reshape(-1, 1) == np.arange(experts)).astype(np.int32)
    before = np.cumsum(hot, axis=0) - hot
    place = (before * hot).sum(axis=1).reshape(topk, -1).T
    place = np.where(place < capacity, place, -1).astype(np.int32)
    chosen = p[rows, expert]
    total = chosen.sum(axis=1, keepdims=True) if topk > 1 else np.ones((len(p), 1), p.dtype)
    gates = chosen / total

    def backward(grad):
        grad_p = np.zeros_like(p)
        inner = (grad * gates).sum(axis=1, keepdims=True) if topk > 1 else 0
        grad_p[rows, expert] = (grad - inner) / total
        return (p * (grad_p - (grad_p * p).sum(axis=1, keepdims=True)),)

    return Route(expert, place, Tensor.from_operation(gates, (logits,), backward), experts, capacity)


@right
def route__one_token_after_the_other(logits, topk, capacity):
    """Loops; a softmax of the chosen ones where that is the same; gates of dropped ones are 0."""
    tokens, experts = logits.shape
    expert = np.zeros((tokens, topk), dtype=int)
    for t in range(tokens):
        left = list(range(experts))
        for k in range(topk):
            best = max(left, key=lambda e: (logits.data[t, e], -e))
            left.remove(best)
            expert[t, k] = best
    place = -np.ones((tokens, topk), dtype=int)
    used = {e: 0 for e in range(experts)}
    for k in range(topk):
        for t in range(tokens):
            if used[expert[t, k]] < capacity:
                place[t, k] = used[expert[t, k]]
                used[expert[t, k]] += 1
    weight = take(softmax(logits), expert) if topk == 1 else softmax(take(logits, expert))
    return Route(expert, place, weight * (place >= 0), experts, capacity)


@right
def route__rows_of_a_column(logits, topk, capacity):
    """Takes the gates as rows of one long column; argmax again and again."""
    chances = softmax(logits)
    tokens, experts = logits.shape
    left, chosen = chances.data.copy(), []
    for _ in range(topk):
        chosen.append(left.argmax(axis=1))
        left[np.arange(tokens), chosen[-1]] = -1
    expert = np.stack(chosen, axis=1)
    gates = embedding(chances.reshape(-1, 1), np.arange(tokens)[:, None] * experts + expert).reshape(tokens, topk)
    if topk > 1:
        gates = gates / gates.sum(axis=1).reshape(tokens, 1)
    place = np.full((tokens, topk), -1)
    for e in range(experts):
        waiting = [(k, t) for k in range(topk) for t in range(tokens) if expert[t, k] == e]
        for slot, (k, t) in enumerate(waiting[:capacity]):
            place[t, k] = slot
    return Route(expert, place, gates, experts, capacity)


@loses(9)
@changes(
    DISPATCH,
    DISPATCH_WITH_ROWS,
    """
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token""",
    "    rows[route.expert, route.place] = np.arange(len(x))[:, None]",
)
def dispatch__last_slot():
    """Index -1: a dropped token takes the last slot from its owner."""


@loses(9)
@changes(
    DISPATCH,
    DISPATCH_IN_OTHER_WORDS,
    """
    parts = embedding(padded, rows.reshape(comm.Get_size(), -1, route.capacity))
    slots = all_to_all(parts, comm).transpose(1, 0, 2, 3)
    return slots.reshape(slots.shape[0], -1, width)""",
    """
    slots = all_to_all(embedding(padded, rows.reshape(comm.Get_size(), -1, route.capacity)), comm)
    return slots.reshape(slots.shape[1], -1, width)""",
)
def dispatch__not_turned():
    """Leaves the slots in the order (rank, expert)."""


@loses(9)
@changes(
    DISPATCH,
    DISPATCH_IN_OTHER_WORDS,
    "parts = embedding(padded, rows.reshape(comm.Get_size(), -1, route.capacity))",
    "turned = np.ascontiguousarray(rows.reshape(-1, comm.Get_size(), route.capacity).swapaxes(0, 1))",
    "all_to_all(parts, comm).transpose",
    "all_to_all(embedding(padded, turned), comm).transpose",
)
def dispatch__in_turns():
    """Sends expert e to rank e % n."""


@loses(6)
def dispatch__identity_backward(x, route, comm):
    """The exchange has no way back: each rank keeps the gradient that it has."""
    tokens, width = x.shape
    rows = np.full((route.experts, route.capacity), tokens)
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, width), x.dtype))])
    parts = embedding(padded, rows.reshape(comm.Get_size(), -1, route.capacity))
    came = np.empty_like(parts.data)
    comm.Alltoall(parts.data, came)
    slots = Tensor.from_operation(came, (parts,), lambda grad: (grad,)).transpose(1, 0, 2, 3)
    return slots.reshape(slots.shape[0], -1, width)


@loses(6)
def dispatch__mean_of_gradients(x, route, comm):
    """Divides the gradient by the number of ranks."""
    tokens, width = x.shape
    rows = np.full((route.experts, route.capacity), tokens)
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, width), x.dtype))])
    parts = embedding(padded, rows.reshape(comm.Get_size(), -1, route.capacity))
    came = np.empty_like(parts.data)
    comm.Alltoall(parts.data, came)

    def backward(grad):
        back = np.empty(grad.shape, grad.dtype)
        comm.Alltoall(np.ascontiguousarray(grad), back)
        return (back / comm.Get_size(),)

    slots = Tensor.from_operation(came, (parts,), backward).transpose(1, 0, 2, 3)
    return slots.reshape(slots.shape[0], -1, width)


@loses(6)
def dispatch__one_choice_counts(x, route, comm):
    """Fancy indexing in place of a sum: of a token's choices, one gives its gradient."""
    n, (tokens, width) = comm.Get_size(), x.shape
    token, choice = np.nonzero(route.place >= 0)
    slot = route.expert[token, choice], route.place[token, choice]
    sent = np.zeros((route.experts, route.capacity, width), x.dtype)
    sent[slot] = x.data[token]
    came = np.empty((n, route.experts // n, route.capacity, width), x.dtype)
    comm.Alltoall(sent, came)

    def backward(grad):
        back = np.ascontiguousarray(grad.reshape(route.experts // n, n, route.capacity, width).swapaxes(0, 1))
        home = np.empty_like(sent)
        comm.Alltoall(back, home)
        grad_x = np.zeros_like(x.data)
        grad_x[token] += home[slot]
        return (grad_x,)

    return Tensor.from_operation(came.swapaxes(0, 1).reshape(route.experts // n, -1, width), (x,), backward)


@loses(6)
def dispatch__no_gradient(x, route, comm):
    """A Tensor of an array: no gradient for the layers below."""
    n, (tokens, width) = comm.Get_size(), x.shape
    token, choice = np.nonzero(route.place >= 0)
    sent = np.zeros((route.experts, route.capacity, width), x.dtype)
    sent[route.expert[token, choice], route.place[token, choice]] = x.data[token]
    came = np.empty((n, route.experts // n, route.capacity, width), x.dtype)
    comm.Alltoall(sent, came)
    return Tensor(came.swapaxes(0, 1).reshape(route.experts // n, -1, width), requires_grad=True)


@loses(5)
def dispatch__all_gather(x, route, comm):
    """Right values: gives all slots to all ranks, and each takes its own."""
    n, (tokens, width) = comm.Get_size(), x.shape
    local, me = route.experts // n, comm.Get_rank()
    token, choice = np.nonzero(route.place >= 0)
    slot = route.expert[token, choice], route.place[token, choice]
    sent = np.zeros((route.experts, route.capacity, width), x.dtype)
    sent[slot] = x.data[token]
    every = np.empty((n, *sent.shape), x.dtype)
    comm.Allgather(sent, every)

    def backward(grad):
        whole = np.zeros((route.experts, n, route.capacity, width), x.dtype)
        whole[me * local : (me + 1) * local] = grad.reshape(local, n, route.capacity, width)
        comm.Allreduce(MPI.IN_PLACE, whole)
        grad_x = np.zeros_like(x.data)
        np.add.at(grad_x, token, whole[:, me][slot])
        return (grad_x,)

    mine = every[:, me * local : (me + 1) * local].swapaxes(0, 1)
    return Tensor.from_operation(mine.reshape(local, -1, width), (x,), backward)


@loses(5)
def dispatch__gathers_tokens(x, route, comm):
    """Right values: every rank gets all tokens, and picks those of its experts."""
    n, me, (tokens, width) = comm.Get_size(), comm.Get_rank(), x.shape
    local, topk, capacity = route.experts // n, route.place.shape[1], route.capacity
    most = np.array([tokens])
    comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
    most = int(most[0])
    mine, every = np.zeros((most, width), x.dtype), np.empty((n, most, width), x.dtype)
    mine[:tokens] = x.data
    comm.Allgather(mine, every)
    way, ways = np.full((2, most, topk), -1), np.empty((n, 2, most, topk), int)
    way[:, :tokens] = route.expert, route.place
    comm.Allgather(way, ways)
    source, token, choice = np.nonzero((ways[:, 1] >= 0) & (ways[:, 0] // local == me))
    slot = ways[source, 0, token, choice] % local, source, ways[source, 1, token, choice]
    slots = np.zeros((local, n, capacity, width), x.dtype)
    slots[slot] = every[source, token]

    def backward(grad):
        whole = np.zeros_like(every)
        np.add.at(whole, (source, token), grad.reshape(slots.shape)[slot])
        back = np.empty_like(mine)
        comm.Reduce_scatter(whole, back)
        return (back[:tokens],)

    return Tensor.from_operation(slots.reshape(local, n * capacity, width), (x,), backward)


@loses(9)
def dispatch__own_experts(x, route, comm):
    """Sends nothing: each rank fills the slots of its own buffer."""
    tokens, width = x.shape
    rows = np.full((route.experts, route.capacity), tokens)
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, width), x.dtype))])
    return embedding(padded, rows).reshape(route.experts // comm.Get_size(), -1, width)


@loses(9)
@changes(
    DISPATCH,
    DISPATCH_WITH_ROWS,
    "token, choice = np.nonzero(route.place >= 0)",
    "token = np.flatnonzero(route.place[:, 0] >= 0)",
    "rows[route.expert[token, choice], route.place[token, choice]] = token",
    "rows[route.expert[token, 0], route.place[token, 0]] = token",
)
def dispatch__first_choice_only():
    """Forgets second choices."""


@loses(9)
def dispatch__weighed(x, route, comm):
    """Multiplies by the gate on the way there."""
    n, (tokens, width) = comm.Get_size(), x.shape
    token, choice = np.nonzero(route.place >= 0)
    slot = route.expert[token, choice], route.place[token, choice]
    sent = np.zeros((route.experts, route.capacity, width), x.dtype)
    sent[slot] = route.weight.data[token, choice][:, None] * x.data[token]
    came = np.empty((n, route.experts // n, route.capacity, width), x.dtype)
    comm.Alltoall(sent, came)

    def backward(grad):
        back = np.ascontiguousarray(grad.reshape(route.experts // n, n, route.capacity, width).swapaxes(0, 1))
        home = np.empty_like(sent)
        comm.Alltoall(back, home)
        grad_x = np.zeros_like(x.data)
        np.add.at(grad_x, token, home[slot])
        return (grad_x,)

    return Tensor.from_operation(came.swapaxes(0, 1).reshape(route.experts // n, -1, width), (x,), backward)


@loses(5)
def dispatch__double_precision(x, route, comm):
    """float64, whatever the tokens are: twice the bytes."""
    n, (tokens, width) = comm.Get_size(), x.shape
    token, choice = np.nonzero(route.place >= 0)
    slot = route.expert[token, choice], route.place[token, choice]
    sent = np.zeros((route.experts, route.capacity, width))
    sent[slot] = x.data[token]
    came = np.empty((n, route.experts // n, route.capacity, width))
    comm.Alltoall(sent, came)

    def backward(grad):
        back = np.ascontiguousarray(grad.reshape(route.experts // n, n, route.capacity, width).swapaxes(0, 1))
        home = np.empty_like(back)
        comm.Alltoall(back, home)
        grad_x = np.zeros_like(x.data)
        np.add.at(grad_x, token, home.reshape(sent.shape)[slot])
        return (grad_x,)

    return Tensor.from_operation(came.swapaxes(0, 1).reshape(route.experts // n, -1, width), (x,), backward)


@loses(9)
@changes(
    DISPATCH,
    DISPATCH_IN_OTHER_WORDS,
    """
    padded = concatenate([x, Tensor(np.zeros((1, width), x.dtype))])
    parts = embedding(padded, rows.reshape(comm.Get_size(), -1, route.capacity))
    slots = all_to_all(parts, comm).transpose(1, 0, 2, 3)
    return slots.reshape(slots.shape[0], -1, width)""",
    """
    parts = embedding(concatenate([x, Tensor(np.zeros((1, width), x.dtype))]), rows.reshape(comm.Get_size(), -1, route.capacity))
    slots = parts if comm.Get_rank() == 0 else all_to_all(parts, comm)
    return slots.transpose(1, 0, 2, 3).reshape(slots.shape[1], -1, width)""",
)
def dispatch__deadlock():
    """A rank whose tokens are all at home does not take part."""


@right
@changes(DISPATCH, DISPATCH_WITH_ROWS)
def dispatch__with_rows():
    """With a table of rows, as before there were helpers."""


@right
def dispatch__messages(x, route, comm):
    """Isend and Irecv to all, also to itself; one operation with its own backward."""
    n, (tokens, width) = comm.Get_size(), x.shape
    local = route.experts // n
    token, choice = np.nonzero(route.place >= 0)
    slot = route.expert[token, choice], route.place[token, choice]

    def post(sent):
        came = np.empty(sent.shape, sent.dtype)
        waiting = [comm.Irecv(came[r], r, 3) for r in range(n)] + [comm.Isend(sent[r], r, 3) for r in range(n)]
        for request in waiting:
            request.Wait()
        return came

    sent = np.zeros((route.experts, route.capacity, width), x.dtype)
    for s, t in enumerate(token):
        sent[slot[0][s], slot[1][s]] = x.data[t]
    came = post(sent.reshape(n, local, route.capacity, width))

    def backward(grad):
        parts = np.stack([part for part in np.split(grad, n, axis=1)])
        home = post(np.ascontiguousarray(parts)).reshape(sent.shape)
        grad_x = np.zeros_like(x.data)
        for s, t in enumerate(token):
            grad_x[t] += home[slot[0][s], slot[1][s]]
        return (grad_x,)

    return Tensor.from_operation(np.concatenate(list(came), axis=1), (x,), backward)


@right
def dispatch__kept_tokens_only(x, route, comm):
    """Alltoallv: only what is kept travels, with the numbers of its slots beside it."""
    n, (tokens, width) = comm.Get_size(), x.shape
    local, capacity = route.experts // n, route.capacity
    token, choice = np.nonzero(route.place >= 0)
    expert, place = route.expert[token, choice].astype(np.int64), route.place[token, choice].astype(np.int64)
    order = np.argsort(expert, kind="stable")
    token, expert, place = token[order], expert[order], place[order]
    out = np.bincount(expert // local, minlength=n).astype(np.int64)
    into = np.empty_like(out)
    comm.Alltoall(out, into)
    into = into.tolist()
    out = out.tolist()
    numbers = np.empty(sum(into), np.int64)
    comm.Alltoallv([(expert % local) * capacity + place, out], [numbers, into])
    rows = np.empty((sum(into), width), x.dtype)
    wide_out, wide_in = [c * width for c in out], [c * width for c in into]
    comm.Alltoallv([x.data[token], wide_out], [rows, wide_in])
    source = np.repeat(np.arange(n), into)
    slots = np.zeros((local, n, capacity, width), x.dtype)
    slots[numbers // capacity, source, numbers % capacity] = rows

    def backward(grad):
        leaving = grad.reshape(local, n, capacity, width)[numbers // capacity, source, numbers % capacity]
        home = np.empty((len(token), width), grad.dtype)
        comm.Alltoallv([np.ascontiguousarray(leaving), wide_in], [home, wide_out])
        grad_x = np.zeros_like(x.data)
        np.add.at(grad_x, token, home)
        return (grad_x,)

    return Tensor.from_operation(slots.reshape(local, n * capacity, width), (x,), backward)


@right
def dispatch__in_pairs(x, route, comm):
    """Sendrecv with one rank after the other; loops over tokens and choices."""
    n, (tokens, width), me = comm.Get_size(), x.shape, comm.Get_rank()
    local, capacity = route.experts // n, route.capacity

    def swap(sent):
        came = np.zeros_like(sent)
        came[me] = sent[me]
        for shift in range(1, n):
            to, source = (me + shift) % n, (me - shift) % n
            comm.Sendrecv(np.ascontiguousarray(sent[to]), to, 0, came[source], source, 0)
        return came

    buffer = np.zeros((n, local, capacity, width), x.dtype)
    for t in range(tokens):
        for e, s in zip(route.expert[t], route.place[t]):
            if s != -1:
                buffer[e // local, e % local, s] = x.data[t]
    out = swap(buffer).transpose(1, 0, 2, 3).reshape(local, n * capacity, width)

    def backward(grad):
        home = swap(grad.reshape(local, n, capacity, width).transpose(1, 0, 2, 3).copy())
        grad_x = np.zeros(x.shape, x.dtype)
        for t in range(tokens):
            for e, s in zip(route.expert[t], route.place[t]):
                if s != -1:
                    grad_x[t] += home[e // local, e % local, s]
        return (grad_x,)

    return Tensor.from_operation(out, (x,), backward)


@loses(9)
@changes(
    COMBINE,
    COMBINE_IN_OTHER_WORDS,
    """
    rows = route.expert * capacity + np.maximum(route.place, 0)
    gates = route.weight * (route.place >= 0)
    return (embedding(slots, rows) * gates.reshape(*rows.shape, 1)).sum(axis=1)""",
    """
    rows = route.expert * capacity + route.place % capacity
    return (embedding(slots, rows) * route.weight.reshape(*rows.shape, 1)).sum(axis=1)""",
)
def combine__last_slot():
    """Index -1: a dropped token gets what stands in another one's slot."""


@loses(9)
@changes(
    COMBINE,
    COMBINE_WITH_ROWS,
    "gates = route.weight * (route.place >= 0)",
    "kept = (route.place >= 0).astype(y.dtype)",
    "gates.reshape(*rows.shape, 1)",
    "kept[..., None]",
)
def combine__no_gate():
    """The sum of the outputs, without the gates."""


@loses(6)
@changes(
    COMBINE,
    COMBINE_WITH_ROWS,
    "gates = route.weight * (route.place >= 0)",
    "gates = route.weight.data * (route.place >= 0)",
    "gates.reshape(*rows.shape, 1)",
    "gates[..., None]",
)
def combine__constant_gates():
    """Gates as an array: the router gets no gradient."""


@loses(6)
def combine__identity_backward(y, route, comm):
    """The exchange has no way back."""
    width, capacity = y.shape[2], route.capacity
    parts = y.reshape(len(y), -1, capacity, width).transpose(1, 0, 2, 3)
    came = np.empty(parts.shape, y.dtype)
    comm.Alltoall(np.ascontiguousarray(parts.data), came)
    slots = Tensor.from_operation(came, (parts,), lambda grad: (grad,)).reshape(-1, width)
    rows = route.expert * capacity + np.maximum(route.place, 0)
    gates = route.weight * (route.place >= 0)
    return (embedding(slots, rows) * gates.reshape(*rows.shape, 1)).sum(axis=1)


@loses(9)
@changes(
    COMBINE,
    COMBINE_WITH_ROWS,
    "    gates = route.weight * (route.place >= 0)",
    """
    kept = route.place >= 0
    gates = route.weight * (kept / np.maximum(kept.sum(axis=1, keepdims=True), 1))""",
)
def combine__mean_of_the_kept():
    """Divides by the number of kept choices."""


@loses(9)
@changes(
    COMBINE,
    COMBINE_WITH_ROWS,
    "gates = route.weight * (route.place >= 0)",
    "gates = route.weight * (route.place >= 0) * (1 / rows.shape[1])",
)
def combine__mean_of_the_choices():
    """Counts dropped choices in a mean."""


@loses(9)
@changes(
    COMBINE,
    COMBINE_IN_OTHER_WORDS,
    "parts = y.reshape(len(y), -1, capacity, width).transpose(1, 0, 2, 3)",
    "parts = y.reshape(comm.Get_size(), -1, capacity, width)",
)
def combine__not_turned():
    """Takes the axes (expert, rank) for (rank, expert)."""


@loses(9)
@changes(
    COMBINE,
    COMBINE_IN_OTHER_WORDS,
    "    return (embedding(slots, rows) * gates.reshape(*rows.shape, 1)).sum(axis=1)",
    """
    gates = gates / (gates.sum(axis=1).reshape(-1, 1) + 1e-9)
    return (embedding(slots, rows) * gates.reshape(*rows.shape, 1)).sum(axis=1)""",
)
def combine__gates_divided_again():
    """Divides the gates by the sum of the kept ones."""


@loses(5)
def combine__all_gather(y, route, comm):
    """Right values: gives all outputs to all ranks."""
    n, me, width = comm.Get_size(), comm.Get_rank(), y.shape[2]
    local, capacity, kept = route.experts // n, route.capacity, (route.place >= 0)[..., None]
    every = np.empty((route.experts, n, capacity, width), y.dtype)
    comm.Allgather(y.data, every)
    found = every[route.expert, me, route.place] * kept
    token, choice = np.nonzero(route.place >= 0)

    def backward(grad):
        whole = np.zeros_like(every)
        sent = route.weight.data[token, choice][:, None] * grad[token]
        whole[route.expert[token, choice], me, route.place[token, choice]] = sent
        mine = np.empty(y.shape, y.dtype)
        comm.Reduce_scatter(whole, mine)
        return mine, (found * grad[:, None]).sum(axis=2)

    return Tensor.from_operation((found * route.weight.data[..., None]).sum(axis=1), (y, route.weight), backward)


@loses(6)
def combine__mean_of_gradients(y, route, comm):
    """Divides the gradient of the outputs by the number of ranks."""
    width, capacity = y.shape[2], route.capacity
    parts = y.reshape(len(y), -1, capacity, width).transpose(1, 0, 2, 3)
    came = np.empty(parts.shape, y.dtype)
    comm.Alltoall(np.ascontiguousarray(parts.data), came)

    def backward(grad):
        back = np.empty(grad.shape, grad.dtype)
        comm.Alltoall(np.ascontiguousarray(grad), back)
        return (back / comm.Get_size(),)

    slots = Tensor.from_operation(came, (parts,), backward).reshape(-1, width)
    rows = route.expert * capacity + np.maximum(route.place, 0)
    gates = route.weight * (route.place >= 0)
    return (embedding(slots, rows) * gates.reshape(*rows.shape, 1)).sum(axis=1)


@loses(6)
def combine__dropped_gates_learn(y, route, comm):
    """The gate of a dropped token gets a gradient from another token's slot."""
    n, width, capacity = comm.Get_size(), y.shape[2], route.capacity
    local, kept = route.experts // n, (route.place >= 0)[..., None]
    came = np.empty((route.experts, capacity, width), y.dtype)
    comm.Alltoall(np.ascontiguousarray(y.data.reshape(local, n, capacity, width).swapaxes(0, 1)), came)
    found = came[route.expert, route.place]
    token, choice = np.nonzero(route.place >= 0)

    def backward(grad):
        sent, back = np.zeros_like(came), np.empty((n, local, capacity, width), y.dtype)
        sent[route.expert[token, choice], route.place[token, choice]] = route.weight.data[token, choice][:, None] * grad[token]
        comm.Alltoall(sent, back)
        return back.swapaxes(0, 1).reshape(y.shape), (found * grad[:, None]).sum(axis=2)

    return Tensor.from_operation((found * kept * route.weight.data[..., None]).sum(axis=1), (y, route.weight), backward)


@loses(9)
@changes(
    COMBINE,
    COMBINE_IN_OTHER_WORDS,
    "    return (embedding(slots, rows) * gates.reshape(*rows.shape, 1)).sum(axis=1)",
    """
    out = (embedding(slots, rows) * gates.reshape(*rows.shape, 1)).sum(axis=1)
    lost = (route.place < 0).all(axis=1)[:, None]
    return out + Tensor(lost * slots.data.mean(axis=0).astype(y.dtype))""",
)
def combine__adds_the_token():
    """A dropped token gets something all the same: the mean of all slots."""


@right
def combine__by_hand(y, route, comm):
    """One operation with its own backward, in loops."""
    n, width, capacity = comm.Get_size(), y.shape[2], route.capacity
    local, (tokens, topk) = route.experts // n, route.place.shape
    came = np.empty((route.experts, capacity, width), y.dtype)
    comm.Alltoall(y.data.reshape(local, n, capacity, width).transpose(1, 0, 2, 3).copy(), came)
    out = np.zeros((tokens, width), y.dtype)
    kept = [(t, k, route.expert[t, k], route.place[t, k]) for t in range(tokens) for k in range(topk) if route.place[t, k] >= 0]
    for t, k, e, s in kept:
        out[t] += route.weight.data[t, k] * came[e, s]

    def backward(grad):
        sent, grad_gates = np.zeros_like(came), np.zeros_like(route.weight.data)
        for t, k, e, s in kept:
            sent[e, s] = route.weight.data[t, k] * grad[t]
            grad_gates[t, k] = grad[t] @ came[e, s]
        back = np.empty((n, local, capacity, width), y.dtype)
        comm.Alltoall(sent, back)
        return np.concatenate(list(back), axis=1), grad_gates

    return Tensor.from_operation(out, (y, route.weight), backward)


@loses(9)
@changes("from_slots(came.reshape(-1, capacity, width), route)", "from_slots(y.reshape(-1, capacity, width), route)")
def combine__before_the_exchange():
    """Looks for its tokens' outputs among those of its own experts."""


@loses(9)
@changes(
    "(found * route.weight.reshape(*route.weight.shape, 1)).sum(axis=1)", "(found * route.weight.reshape(*route.weight.shape, 1))[:, 0]"
)
def combine__first_choice_only():
    """Forgets second choices."""


@right
@changes(COMBINE, COMBINE_WITH_ROWS)
def combine__with_rows():
    """With a table of rows, as before there were helpers."""


@right
def combine__messages(y, route, comm):
    """Isend and Irecv; a row of zeros for dropped tokens."""
    n, width, capacity = comm.Get_size(), y.shape[2], route.capacity

    def post(sent):
        sent, came = np.ascontiguousarray(sent), np.empty(sent.shape, sent.dtype)
        waiting = [comm.Irecv(came[r], source=r) for r in range(n)] + [comm.Isend(sent[r], dest=r) for r in range(n)]
        for request in waiting:
            request.Wait()
        return came

    parts = y.reshape(route.experts // n, n, capacity, width).transpose(1, 0, 2, 3)
    slots = Tensor.from_operation(post(parts.data), (parts,), lambda grad: (post(grad),)).reshape(-1, width)
    padded = concatenate([slots, Tensor(np.zeros((1, width), y.dtype))])
    rows = np.where(route.place < 0, route.experts * capacity, route.expert * capacity + route.place)
    picked = embedding(padded, rows)
    out = picked[:, 0] * route.weight[:, 0:1]
    for k in range(1, rows.shape[1]):
        out = out + picked[:, k] * route.weight[:, k : k + 1]
    return out


@right
def combine__weighed_at_the_experts(y, route, comm):
    """The gates travel to the experts' ranks, and the outputs come back weighed; the gradient the other way round."""
    n, width, capacity = comm.Get_size(), y.shape[2], route.capacity
    local = route.experts // n
    token, choice = np.nonzero(route.place >= 0)
    slot = route.expert[token, choice], route.place[token, choice]
    gates, there = np.zeros((route.experts, capacity), y.dtype), np.empty((n, local, capacity), y.dtype)
    gates[slot] = route.weight.data[token, choice]
    comm.Alltoall(gates, there)
    there = there.swapaxes(0, 1).reshape(local, n * capacity, 1)
    home = np.empty((route.experts, capacity, width), y.dtype)
    parts = (y.data * there).reshape(local, n, capacity, width).swapaxes(0, 1)
    comm.Alltoall(np.ascontiguousarray(parts), home)
    out = np.zeros((len(route.place), width), y.dtype)
    np.add.at(out, token, home[slot])

    def backward(grad):
        sent, came = np.zeros_like(home), np.empty((n, local, capacity, width), y.dtype)
        sent[slot] = grad[token]
        comm.Alltoall(sent, came)
        grad_slots = came.swapaxes(0, 1).reshape(y.shape)
        along = (grad_slots * y.data).sum(axis=2).reshape(local, n, capacity).swapaxes(0, 1)
        back, grad_gates = np.empty((route.experts, capacity), y.dtype), np.zeros_like(route.weight.data)
        comm.Alltoall(np.ascontiguousarray(along), back)
        grad_gates[token, choice] = back[slot]
        return grad_slots * there, grad_gates

    return Tensor.from_operation(out, (y, route.weight), backward)


@loses(2)
@changes(
    DISPATCH,
    DISPATCH_BY_HAND,
    "    def backward(g):",
    """
    dispatch.at = token, at

    def backward(g):
        token, at = dispatch.at""",
)
def dispatch__stash():
    """Backward reads what the last call left."""


@loses(5)
@changes(
    DISPATCH,
    DISPATCH_BY_HAND,
    "    def backward(g):",
    """
    pool = dispatch.__dict__.setdefault("pool2", {})
    keep = pool.setdefault((out.shape, out.dtype.str), np.empty_like(out))
    keep[...] = out
    out = keep

    def backward(g):""",
)
def dispatch__shared_out():
    """Keeps one array for all results."""


@loses(5)
@changes(
    DISPATCH,
    DISPATCH_BY_HAND,
    "    return Tensor.from_operation(out, (x,), backward)",
    """
    if not x.requires_grad:
        raise ValueError
    return Tensor.from_operation(out, (x,), backward)""",
)
def dispatch__needs_grad():
    """Fails where nothing needs a gradient."""


@loses(2)
@changes(
    DISPATCH,
    DISPATCH_BY_HAND,
    "        back = swap(g.reshape(len(g), n, -1, g.shape[2]).swapaxes(0, 1)).reshape(sent.shape)",
    """
        g0, g = g, g.copy()
        g0[...] = 0
        back = swap(g.reshape(len(g), n, -1, g.shape[2]).swapaxes(0, 1)).reshape(sent.shape)""",
)
def dispatch__mutates_g():
    """Overwrites the gradient that comes."""


@loses(9)
@changes(
    DISPATCH,
    DISPATCH_BY_HAND,
    "        came = np.empty(sent.shape, sent.dtype)",
    """
        me = Communicator().Get_rank() % comm.Get_size()
        came = np.empty(sent.shape, sent.dtype)""",
    "        comm.Alltoall(np.ascontiguousarray(sent), came)",
    """
        sent = np.ascontiguousarray(sent)
        came[me] = sent[me]
        for s in range(1, comm.Get_size()):
            comm.Sendrecv(
                sent[(me + s) % comm.Get_size()],
                (me + s) % comm.Get_size(),
                recvbuf=came[(me - s) % comm.Get_size()],
                source=(me - s) % comm.Get_size(),
            )""",
)
def dispatch__everyone_rank():
    """Its place among all ranks for that in the group."""


@loses(5)
@changes(
    DISPATCH,
    DISPATCH_BY_HAND,
    "    return Tensor.from_operation(out, (x,), backward)",
    """
    route.weight.data[route.place < 0] = 7
    return Tensor.from_operation(out, (x,), backward)""",
)
def dispatch__mutates_weight():
    """Takes the gates away."""


@loses(2)
@changes(
    COMBINE,
    COMBINE_BY_HAND,
    "    def backward(g):",
    """
    combine.kept = found, kept, route

    def backward(g):
        found, kept, route = combine.kept""",
)
def combine__stash():
    """Backward reads what the last call left."""


@loses(2)
@changes(
    COMBINE,
    COMBINE_BY_HAND,
    "    kept = route.place >= 0",
    """
    pool = combine.__dict__.setdefault("pool2", {})
    keep = pool.setdefault((came.shape, came.dtype.str), np.empty_like(came))
    keep[...] = came
    came = keep
    kept = route.place >= 0""",
    """
    found = came[route.expert, route.place] * kept[..., None]
    out = (found * route.weight.data[..., None]).sum(axis=1)""",
    """
    def found():
        return came[route.expert, route.place] * kept[..., None]

    out = (found() * route.weight.data[..., None]).sum(axis=1)""",
    "dgates = (found * g[:, None]).sum(axis=2)",
    "dgates = (found() * g[:, None]).sum(axis=2)",
)
def combine__shared_came():
    """Keeps one array for all that comes."""


@loses(5)
@changes(
    COMBINE,
    COMBINE_BY_HAND,
    "swap(back.reshape(n, -1, route.capacity, width)).swapaxes(0, 1)",
    "back",
    "    return Tensor.from_operation(out, (y, route.weight), backward)",
    """
    y.register_hook(lambda g: swap(g.reshape(n, -1, route.capacity, width)).swapaxes(0, 1).reshape(y.shape))
    return Tensor.from_operation(out, (y, route.weight), backward)""",
)
def combine__hook_y():
    """A hook on its input."""


@loses(5)
@changes(
    COMBINE,
    COMBINE_BY_HAND,
    "    return Tensor.from_operation(out, (y, route.weight), backward)",
    """
    if not (y.requires_grad and route.weight.requires_grad):
        raise ValueError
    return Tensor.from_operation(out, (y, route.weight), backward)""",
)
def combine__needs_grad():
    """Fails where nothing needs a gradient."""


@loses(6)
@changes(
    "    chances = softmax(logits)",
    """
    if not logits.requires_grad:
        raise ValueError
    chances = softmax(logits)""",
)
def route__needs_grad():
    """Fails where nothing needs a gradient."""


@loses(6)
@changes(
    "    chances = softmax(logits)",
    """
    Communicator().Allreduce(logits.data.sum(axis=0).astype(float), np.empty(logits.shape[1]))
    chances = softmax(logits)""",
)
def route__sends():
    """Sends, where nothing is to be sent."""


@loses(6)
@changes(
    "    chances = softmax(logits)",
    """
    p = concatenate([logits, logits]) if 0 else logits
    e = Tensor.from_operation(np.exp(p.data), (p,), lambda g: (g * np.exp(p.data),))
    chances = e / e.sum(axis=1).reshape(-1, 1)""",
)
def route__no_max():
    """A softmax that overflows."""


@loses(6)
@changes(
    "    chances = softmax(logits)",
    """
    if logits.shape[0] < 2:
        raise IndexError
    chances = softmax(logits)""",
)
def route__crash_batch1():
    """Fails for one token."""


@loses(4)
@changes(
    "    for k, t in np.ndindex(topk, len(expert)):",
    """
    place = route.__dict__.setdefault("pl", {}).setdefault(place.shape, place)
    place[:] = -1
    for k, t in np.ndindex(topk, len(expert)):""",
)
def route__shared_place():
    """Keeps one array for all places."""


@loses(5)
def dispatch__a_third_more(x, route, comm):
    """Sends a quarter more slots than there are."""
    C2 = route.capacity + max(1, route.capacity // 4)

    def swap(sent):
        came = np.empty(sent.shape, sent.dtype)
        comm.Alltoall(np.ascontiguousarray(sent), came)
        return came

    rows = np.full((route.experts, C2), len(x))
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, x.shape[1]), x.dtype))])
    parts = embedding(padded, rows.reshape(comm.Get_size(), -1, C2))
    slots = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    slots = slots.transpose(1, 0, 2, 3)[:, :, : route.capacity]
    return slots.reshape(slots.shape[0], -1, x.shape[1])


@loses(5)
def dispatch__stays_at_home(x, route, comm):
    """Exchanges nothing if all its tokens stay on the rank."""
    local = route.experts // comm.Get_size()
    kept = route.place >= 0
    home = np.all(route.expert[kept] // local == comm.Get_rank())

    def swap(sent):
        came = np.empty(sent.shape, sent.dtype)
        if not home:
            comm.Alltoall(np.ascontiguousarray(sent), came)
        return sent if home else came

    rows = np.full((route.experts, route.capacity), len(x))
    token, choice = np.nonzero(kept)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, x.shape[1]), x.dtype))])
    parts = embedding(padded, rows.reshape(comm.Get_size(), -1, route.capacity))
    slots = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    return slots.transpose(1, 0, 2, 3).reshape(slots.shape[1], -1, x.shape[1])


@loses(5)
@changes(
    "    def swap(sent):",
    """
    n, me = comm.Get_size(), comm.Get_rank()

    def swap(sent):
        sent = np.ascontiguousarray(sent)
        if n == 2:
            whole = np.empty((n, *sent.shape), sent.dtype)
            comm.Allgather(sent, whole)
            return np.ascontiguousarray(whole[:, me])""",
    "comm.Alltoall(np.ascontiguousarray(sent), came)",
    "comm.Alltoall(sent, came)",
)
def dispatch__gathers_in_pairs():
    """Gives all slots to all ranks in groups of two: the bound has room for a rank's own part, as soon as one call is no all-to-all."""


@loses(9)
@changes(SWAP, SENDS_THEN_RECEIVES)
def dispatch__sends_then_receives():
    """Each rank first sends to all others with Send, then receives: all wait for each other as soon as a part has more than 64 KB."""


@loses(9)
@changes(SWAP, SENDS_THEN_RECEIVES)
def combine__sends_then_receives():
    """Likewise."""


@loses(5)
@changes(
    SWAP,
    """
    n, me = comm.Get_size(), comm.Get_rank()

    def swap(sent):
        sent = np.ascontiguousarray(sent)
        came = np.empty_like(sent)
        came[me] = sent[me]
        for other in range(n):
            if other != me:
                comm.Isend(sent[other], dest=other)
        for other in range(n):
            if other != me:
                comm.Recv(came[other], source=other)""",
)
def dispatch__never_waits():
    """Isend to all others, and no Wait; the array goes when the function returns."""


@loses(10)
@changes(
    "return Route(expert, place, weight,",
    "return Route(expert.tolist(), place.tolist(), weight,",
)
def route__lists():
    """Returns lists."""


@loses(5)
@changes(
    """
        comm.Alltoall(np.ascontiguousarray(sent), came)
        return came

    n, width = comm.Get_size(), x.shape[1]
""",
    """
        sent = np.ascontiguousarray(sent)
        me = comm.Get_rank()
        came[me] = sent[me]
        for step in range(1, n):
            comm.Sendrecv(sent[me ^ step], dest=me ^ step, recvbuf=came[me ^ step], source=me ^ step)
        return came

    n, width = comm.Get_size(), x.shape[1]
""",
)
def dispatch__powers_of_two():
    """In step s, exchanges with rank me ^ s, which is there only if n is a power of two."""
