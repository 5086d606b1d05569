"""Answers to part 23: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# A body without overlap: answers below are changes of it.
SENDRECV = """
    n, rank, length = comm.Get_size(), comm.Get_rank(), q.shape[2] // 2
    at = [positions(zigzag(2 * n, n, (rank - step) % n), length) for step in range(n)]

    def pass_on(array):
        received = np.empty_like(array)
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    keys, values = k.data, v.data
    out, lse = block_attention(q.data, keys, values, at[0], at[0])
    for now in at[1:]:
        keys, values = pass_on(keys), pass_on(values)
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))

    def backward(grad):
        of_rows, keys, values = (grad, out, lse, q.data), k.data, v.data
        dq, dk, dv = block_backward(*of_rows, keys, values, at[0], at[0])
        for now in at[1:]:
            keys, values, dk, dv = map(pass_on, (keys, values, dk, dv))
            more = block_backward(*of_rows, keys, values, at[0], now)
            dq, dk, dv = dq + more[0], dk + more[1], dv + more[2]
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)"""


@right
def merge__by_the_larger(out, lse, block_out, block_lse):
    """Takes the larger lse from both exponents, as the text says."""
    largest = np.maximum(lse, block_lse)
    largest = np.where(np.isneginf(largest), largest.dtype.type(0), largest)
    weight, block_weight = np.exp(lse - largest), np.exp(block_lse - largest)
    total = weight + block_weight
    safe = np.where(total > 0, total, total.dtype.type(1))
    merged = (weight[..., None] * out + block_weight[..., None] * block_out) / safe[..., None]
    return merged, np.where(total > 0, largest + np.log(safe), lse)


@right
def merge__sigmoid(out, lse, block_out, block_lse):
    """As ring-flash-attention does it: one sigmoid of the difference, with warnings off where there is none."""
    with np.errstate(all="ignore"):
        share = 1 / (1 + np.exp(np.clip(lse - block_lse, -80, 80)))
        share = np.where(np.isneginf(block_lse), 0, np.where(np.isneginf(lse), 1, share)).astype(out.dtype)
        total = np.logaddexp(lse, block_lse)
    return out - share[..., None] * (out - block_out), total


@right
def merge__in_double_precision(out, lse, block_out, block_lse):
    """Computes with 64 bits, and stacks both sides."""
    both = np.stack([lse, block_lse]).astype(np.float64)
    top = both.max(axis=0)
    top[np.isneginf(top)] = 0
    weights = np.exp(both - top)
    total = weights.sum(axis=0)
    lse_of_all = np.full(total.shape, -np.inf)
    np.log(total, out=lse_of_all, where=total > 0)
    weights /= np.maximum(total, 1e-300)
    merged = weights[0][..., None] * out + weights[1][..., None] * block_out
    return merged.astype(out.dtype), (top + lse_of_all).astype(lse.dtype)


@right
def merge__row_by_row(out, lse, block_out, block_lse):
    """Only where something is seen."""
    merged, total = out.copy(), lse.copy()
    for row in np.ndindex(lse.shape):
        a, b = lse[row], block_lse[row]
        if np.isneginf(b):
            continue
        if np.isneginf(a):
            merged[row], total[row] = block_out[row], b
            continue
        top = max(a, b)
        s = np.exp(a - top) + np.exp(b - top)
        merged[row] = (np.exp(a - top) * out[row] + np.exp(b - top) * block_out[row]) / s
        total[row] = top + np.log(s)
    return merged, total


@loses(8)
def merge__no_max(out, lse, block_out, block_lse):
    """Exponentials as they are."""
    weight, block_weight = np.exp(lse), np.exp(block_lse)
    total = weight + block_weight
    merged = (weight[..., None] * out + block_weight[..., None] * block_out) / total[..., None]
    return merged, np.log(total)


@loses(21)
def merge__max_for_the_sum(out, lse, block_out, block_lse):
    """The maximum and the sum mixed up: the lse is the larger of both."""
    both = np.logaddexp(lse, block_lse)
    base = np.where(np.isneginf(both), both.dtype.type(0), both)
    merged = np.exp(lse - base)[..., None] * out + np.exp(block_lse - base)[..., None] * block_out
    return merged, np.maximum(lse, block_lse)


@loses(21)
def merge__weights_by_the_max(out, lse, block_out, block_lse):
    """The weights are not divided by their sum."""
    top = np.maximum(lse, block_lse)
    base = np.where(np.isneginf(top), top.dtype.type(0), top)
    merged = np.exp(lse - base)[..., None] * out + np.exp(block_lse - base)[..., None] * block_out
    return merged, np.logaddexp(lse, block_lse)


@loses(21)
def merge__base_two(out, lse, block_out, block_lse):
    """lse of base 2."""
    both = np.logaddexp2(lse, block_lse)
    base = np.where(np.isneginf(both), both.dtype.type(0), both)
    merged = np.exp2(lse - base)[..., None] * out + np.exp2(block_lse - base)[..., None] * block_out
    return merged, both


@loses(21)
def merge__mean(out, lse, block_out, block_lse):
    """The mean of both."""
    return (out + block_out) / 2, np.logaddexp(lse, block_lse)


@loses(21)
def merge__sum(out, lse, block_out, block_lse):
    """The sum of both."""
    return out + block_out, np.logaddexp(lse, block_lse)


@loses(21)
def merge__swapped(out, lse, block_out, block_lse):
    """Each weight at the other side."""
    both = np.logaddexp(lse, block_lse)
    base = np.where(np.isneginf(both), both.dtype.type(0), both)
    merged = np.exp(block_lse - base)[..., None] * out + np.exp(lse - base)[..., None] * block_out
    return merged, both


@loses(21)
def merge__lse_added(out, lse, block_out, block_lse):
    """The sum of the two logarithms."""
    both = np.logaddexp(lse, block_lse)
    base = np.where(np.isneginf(both), both.dtype.type(0), both)
    merged = np.exp(lse - base)[..., None] * out + np.exp(block_lse - base)[..., None] * block_out
    return merged, lse + block_lse


@right
def merge__by_addition(out, lse, block_out, block_lse):
    """The logarithm of 0 where nothing is seen, which makes NumPy warn."""
    top = np.maximum(lse, block_lse)
    top = np.where(np.isneginf(top), top.dtype.type(0), top)
    weight, block_weight = np.exp(lse - top)[..., None], np.exp(block_lse - top)[..., None]
    total = weight + block_weight
    merged = (weight * out + block_weight * block_out) / total
    merged[np.isnan(merged)] = 0
    return merged, top + np.log(total)[..., 0]


@loses(2)
def merge__nan_where_nothing(out, lse, block_out, block_lse):
    """-inf minus -inf."""
    both = np.logaddexp(lse, block_lse)
    merged = np.exp(lse - both)[..., None] * out + np.exp(block_lse - both)[..., None] * block_out
    return merged, both


@right
def merge__warns(out, lse, block_out, block_lse):
    """Right, though NumPy warns of -inf minus -inf on the way."""
    both = np.logaddexp(lse, block_lse)
    merged = np.exp(lse - both)[..., None] * out + np.exp(block_lse - both)[..., None] * block_out
    return np.nan_to_num(merged), both


@loses(2)
def merge__large_for_infinite(out, lse, block_out, block_lse):
    """-1e9 in the place of -inf."""
    lse, block_lse = np.maximum(lse, -1e9), np.maximum(block_lse, -1e9)
    both = np.logaddexp(lse, block_lse)
    merged = np.exp(lse - both)[..., None] * out + np.exp(block_lse - both)[..., None] * block_out
    return merged, both


@loses(8)
def merge__one_max_for_all(out, lse, block_out, block_lse):
    """The largest lse of all rows in the place of each row's own."""
    top = max(lse.max(), block_lse.max())
    top = 0 if np.isneginf(top) else top
    weight, block_weight = np.exp(lse - top), np.exp(block_lse - top)
    total = weight + block_weight
    safe = np.where(total > 0, total, total.dtype.type(1))
    merged = (weight / safe)[..., None] * out + (block_weight / safe)[..., None] * block_out
    return merged, np.where(total > 0, top + np.log(safe), -np.inf).astype(lse.dtype)


@loses(21)
def merge__double(out, lse, block_out, block_lse):
    """Everything with 64 bits."""
    lse, block_lse = lse.astype(float), block_lse.astype(float)
    both = np.logaddexp(lse, block_lse)
    base = np.where(np.isneginf(both), 0, both)
    return np.exp(lse - base)[..., None] * out + np.exp(block_lse - base)[..., None] * block_out, both


@loses(6)
def merge__in_place(out, lse, block_out, block_lse):
    """Changes the arrays that it is given."""
    both = np.logaddexp(lse, block_lse)
    base = np.where(np.isneginf(both), both.dtype.type(0), both)
    out *= np.exp(lse - base)[..., None]
    out += np.exp(block_lse - base)[..., None] * block_out
    lse[...] = both
    return out, lse


@loses(21)
def merge__keeps_the_first(out, lse, block_out, block_lse):
    """The lse is not carried on."""
    both = np.logaddexp(lse, block_lse)
    base = np.where(np.isneginf(both), both.dtype.type(0), both)
    merged = np.exp(lse - base)[..., None] * out + np.exp(block_lse - base)[..., None] * block_out
    return merged, lse


@right
def zigzag__sorted(n_chunks, ranks, rank):
    """Both ends of each pair, sorted."""
    m = n_chunks // ranks // 2
    early = range(m * rank, m * rank + m)
    return sorted({*early, *(n_chunks - c - 1 for c in early)})


@right
def zigzag__array(n_chunks, ranks, rank):
    """With NumPy."""
    parts = np.split(np.arange(n_chunks), 2 * ranks)
    return np.concatenate([parts[rank], parts[2 * ranks - 1 - rank]]).tolist()


@right
def zigzag__asks_each_chunk(n_chunks, ranks, rank):
    """Whose is each?"""
    m = n_chunks // (2 * ranks)
    return [c for c in range(n_chunks) if min(c, n_chunks - 1 - c) // m == rank]


@loses(19)
def zigzag__plain(n_chunks, ranks, rank):
    """Contiguous: as the sequence is."""
    m = n_chunks // ranks
    return list(range(rank * m, (rank + 1) * m))


@loses(19)
def zigzag__round_robin(n_chunks, ranks, rank):
    """Striped: every so many."""
    return list(range(rank, n_chunks, ranks))


@loses(4)
def zigzag__two_chunks_only(n_chunks, ranks, rank):
    """Not for more chunks."""
    return [rank, 2 * ranks - 1 - rank]


@loses(4)
@changes("return early + [n_chunks - 1 - c for c in reversed(early)]", "return early + [n_chunks - c for c in reversed(early)]")
def zigzag__off_by_one():
    """The partner one too far."""


@loses(4)
def zigzag__striped_pairs(n_chunks, ranks, rank):
    """Pairs dealt out in turn: balanced, and not what the docstring says."""
    early = list(range(rank, n_chunks // 2, ranks))
    return early + [n_chunks - 1 - c for c in reversed(early)]


@loses(4)
def zigzag__snake(n_chunks, ranks, rank):
    """There and back again, over and over."""
    return [c for c in range(n_chunks) if (c % ranks if c // ranks % 2 == 0 else ranks - 1 - c % ranks) == rank]


@loses(19)
@changes("early = list(range(rank * m, (rank + 1) * m))", "early = list(range((ranks - 1 - rank) * m, (ranks - rank) * m))")
def zigzag__reversed():
    """The first rank gets the middle."""


@loses(4)
@changes("return early + [n_chunks - 1 - c for c in reversed(early)]", "return early + [n_chunks - 1 - c for c in early]")
def zigzag__out_of_order():
    """The partners in the order of the early ones."""


@loses(19)
@changes("return early + [n_chunks - 1 - c for c in reversed(early)]", "return [n_chunks - 1 - c for c in reversed(early)] + early")
def zigzag__late_first():
    """The late chunk first."""


@loses(19)
def zigzag__pairs(n_chunks, ranks, rank):
    """A list of pairs."""
    m = n_chunks // (2 * ranks)
    return [(c, n_chunks - 1 - c) for c in range(rank * m, (rank + 1) * m)]


@loses(19)
def zigzag__the_half_only(n_chunks, ranks, rank):
    """Forgets the partners."""
    m = n_chunks // (2 * ranks)
    return list(range(rank * m, (rank + 1) * m))


@loses(4)
def zigzag__balanced_by_hand(n_chunks, ranks, rank):
    """Knows four ranks."""
    return [[0, 7], [1, 6], [2, 5], [3, 4]][rank]


@loses(19)
def zigzag__everything(n_chunks, ranks, rank):
    """All ranks have all."""
    return list(range(n_chunks))


@loses(4)
def ring_attention__gathers_and_loops(q, k, v, comm):
    """Gathers K and V, and reduce-scatters the gradients: right, and not a ring."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    mine = positions(zigzag(2 * n, n, rank), count // 2)

    def all_of(a):
        whole = np.empty((n, *a.shape), a.dtype)
        comm.Allgather(a, whole)
        return whole

    keys, values = all_of(k.data), all_of(v.data)
    out, lse = block_attention(q.data, k.data, v.data, mine, mine)
    for r in range(n):
        if r != rank:
            out, lse = merge(out, lse, *block_attention(q.data, keys[r], values[r], mine, positions(zigzag(2 * n, n, r), count // 2)))

    def backward(grad):
        keys, values = all_of(k.data), all_of(v.data)
        dq, dk, dv = np.zeros_like(q.data), np.empty_like(keys), np.empty_like(values)
        for r in range(n):
            part, dk[r], dv[r] = block_backward(
                grad, out, lse, q.data, keys[r], values[r], mine, positions(zigzag(2 * n, n, r), count // 2)
            )
            dq += part
        dk_mine, dv_mine = np.empty_like(k.data), np.empty_like(v.data)
        comm.Reduce_scatter(dk, dk_mine)
        comm.Reduce_scatter(dv, dv_mine)
        return dq, dk_mine, dv_mine

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__gathers_by_hand(q, k, v, comm):
    """Has the K and V of all ranks at once, though they came round the ring."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    mine = positions(zigzag(2 * n, n, rank), count // 2)

    def all_of(a):
        found = {rank: a}
        for step in range(1, n):
            found[(rank - step) % n] = received = np.empty_like(a)
            comm.Sendrecv(found[(rank - step + 1) % n], (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return found

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    keys, values = all_of(k.data), all_of(v.data)
    out, lse = block_attention(q.data, k.data, v.data, mine, mine)
    for r in range(n):
        if r != rank:
            out, lse = merge(out, lse, *block_attention(q.data, keys[r], values[r], mine, positions(zigzag(2 * n, n, r), count // 2)))
    del keys, values

    def backward(grad):
        keys, values = all_of(k.data), all_of(v.data)
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for step in range(n):
            r = (rank - step) % n
            if step:
                dk, dv = pass_on(dk), pass_on(dv)
            for total, part in zip(
                (dq, dk, dv), block_backward(grad, out, lse, q.data, keys[r], values[r], mine, positions(zigzag(2 * n, n, r), count // 2))
            ):
                total += part
        del keys, values
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__keeps_what_came(q, k, v, comm):
    """Keeps the K and V of all ranks for the way back."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    mine = positions(zigzag(2 * n, n, rank), count // 2)

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kept = [(k.data, v.data)]
    out, lse = block_attention(q.data, k.data, v.data, mine, mine)
    for step in range(1, n):
        kept.append(tuple(map(pass_on, kept[-1])))
        out, lse = merge(out, lse, *block_attention(q.data, *kept[-1], mine, positions(zigzag(2 * n, n, (rank - step) % n), count // 2)))

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for step in range(n):
            if step:
                dk, dv = pass_on(dk), pass_on(dv)
            for total, part in zip(
                (dq, dk, dv),
                block_backward(grad, out, lse, q.data, *kept[step], mine, positions(zigzag(2 * n, n, (rank - step) % n), count // 2)),
            ):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@right
@changes(..., SENDRECV)
def ring_attention__without_overlap():
    """Exchanges first, then computes."""


@right
def ring_attention__prefetches(q, k, v, comm):
    """Sends the next K and V while it computes."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    mine, after, before = positions(zigzag(2 * n, n, rank), count // 2), (rank + 1) % n, (rank - 1) % n

    def start(*arrays):
        come = [np.empty_like(a) for a in arrays]
        requests = [comm.Irecv(a, before, tag=i) for i, a in enumerate(come)]
        return come, requests + [comm.Isend(a, after, tag=i) for i, a in enumerate(arrays)]

    def end(come, requests):
        for request in requests:
            request.Wait()
        return come

    keys, values = k.data, v.data
    out, lse = np.zeros_like(q.data), np.full(q.shape[:-1], -np.inf, q.dtype)
    for step in range(n):
        begun = start(keys, values) if step < n - 1 else None
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, mine, positions(zigzag(2 * n, n, (rank - step) % n), count // 2)))
        if begun:
            keys, values = end(*begun)

    def backward(grad):
        keys, values = k.data, v.data
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for step in range(n):
            begun = start(keys, values) if step < n - 1 else None
            parts = block_backward(grad, out, lse, q.data, keys, values, mine, positions(zigzag(2 * n, n, (rank - step) % n), count // 2))
            dq, dk, dv = dq + parts[0], dk + parts[1], dv + parts[2]
            if begun:
                keys, values = end(*begun)
            dk, dv = end(*start(dk, dv))
        return dq, dk, dv

    return Tensor.from_operation(out, (q, k, v), backward)


@right
def ring_attention__stacked(q, k, v, comm):
    """K and V in one array, on the way back with dK and dV."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    mine = positions(zigzag(2 * n, n, rank), count // 2)

    def pass_on(array):
        received = np.empty_like(array)
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    travelling = np.stack([k.data, v.data])
    out, lse = np.zeros_like(q.data), np.full(q.shape[:-1], -np.inf, q.dtype)
    for step in range(n):
        if step:
            travelling = pass_on(travelling)
        out, lse = merge(out, lse, *block_attention(q.data, *travelling, mine, positions(zigzag(2 * n, n, (rank - step) % n), count // 2)))

    def backward(grad):
        travelling = np.stack([k.data, v.data, np.zeros_like(k.data), np.zeros_like(v.data)])
        dq = np.zeros_like(q.data)
        for step in range(n):
            if step:
                travelling = pass_on(travelling)
            parts = block_backward(
                grad, out, lse, q.data, *travelling[:2], mine, positions(zigzag(2 * n, n, (rank - step) % n), count // 2)
            )
            dq += parts[0]
            travelling[2:] += parts[1:]
        dk, dv = pass_on(travelling[2:])
        return dq, dk, dv

    return Tensor.from_operation(out, (q, k, v), backward)


@right
@changes(
    ...,
    SENDRECV,
    "        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)",
    """
        after, before = (rank + 1) % n, (rank - 1) % n
        if n == 1:
            received[...] = array
        elif rank % 2:
            comm.Recv(received, before)
            comm.Send(array, after)
        else:
            request = comm.Isend(array, after)
            comm.Recv(received, before)
            request.Wait()""",
)
def ring_attention__even_and_odd():
    """Send and Recv, in an order in which nobody waits for itself."""


@right
@changes(
    ...,
    SENDRECV,
    """
    out, lse = block_attention(q.data, keys, values, at[0], at[0])
    for now in at[1:]:
        keys, values = pass_on(keys), pass_on(values)""",
    """
    out, lse = np.zeros_like(q.data), np.full(q.shape[:-1], -np.inf, q.dtype)
    for step, now in enumerate(at):
        if step:
            keys, values = pass_on(keys), pass_on(values)""",
)
def ring_attention__starts_from_nothing():
    """Begins with rows that have seen nothing."""


@right
@changes(
    ...,
    SENDRECV,
    "            more = block_backward(*of_rows, keys, values, at[0], now)",
    """
            scores = q.data @ keys.swapaxes(-1, -2) * q.dtype.type(1 / np.sqrt(q.shape[-1]))
            scores = np.where(now[None, :] <= at[0][:, None], scores, -np.inf)
            weights = np.exp(scores - lse[..., None])
            slopes = weights * (grad @ values.swapaxes(-1, -2) - (grad * out).sum(axis=-1, keepdims=True))
            slopes = slopes * q.dtype.type(1 / np.sqrt(q.shape[-1]))
            more = slopes @ keys, slopes.swapaxes(-1, -2) @ q.data, weights.swapaxes(-1, -2) @ grad""",
)
def ring_attention__own_mathematics():
    """Computes the way back of a block by itself."""


@right
@changes(
    ...,
    SENDRECV,
    "            dq, dk, dv = dq + more[0], dk + more[1], dv + more[2]",
    """
            for total, part in zip((dq, dk, dv), more):
                total += part""",
)
def ring_attention__adds_in_place():
    """Adds to the gradients where they lie."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    """
    for now in at[1:]:
        keys, values = pass_on(keys), pass_on(values)""",
    """
    for now in []:
        keys, values = pass_on(keys), pass_on(values)""",
    "        for now in at[1:]:",
    "        for now in []:",
)
def ring_attention__own_keys_only():
    """Each rank by itself."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    "at = [positions(zigzag(2 * n, n, (rank - step) % n), length) for step in range(n)]",
    "at = [np.arange(2 * length)] * n",
)
def ring_attention__local_positions():
    """A mask by positions that begin with 0 on each rank."""


@loses(15)
@changes(..., SENDRECV, "zigzag(2 * n, n, (rank - step) % n)", "[2 * ((rank - step) % n), 2 * ((rank - step) % n) + 1]")
def ring_attention__plain_order():
    """Positions in plain order."""


@loses(15)
@changes(..., SENDRECV, "rank - step", "rank + step")
def ring_attention__wrong_way():
    """The positions of the ranks after, with the keys of those before."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    """
        keys, values = pass_on(keys), pass_on(values)
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))""",
    """
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))
        keys, values = pass_on(keys), pass_on(values)""",
)
def ring_attention__one_step_late():
    """Looks at K and V before they are passed on."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    "    at = [positions(zigzag(2 * n, n, (rank - step) % n), length) for step in range(n)]",
    """
    at = [np.arange(2 * length)] + [np.arange(2 * length) - 2 * length for _ in range(1, n)]
    unused = [positions(zigzag(2 * n, n, (rank - step) % n), length) for step in range(n)]""",
)
def ring_attention__no_mask():
    """Every row sees every key."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    "keys, values = pass_on(keys), pass_on(values)",
    "keys = pass_on(keys)",
    "keys, values, dk, dv = map(pass_on, (keys, values, dk, dv))",
    "keys, dk, dv = map(pass_on, (keys, dk, dv))",
)
def ring_attention__values_stay():
    """V does not travel."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    "        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))",
    """
        more, more_lse = block_attention(q.data, keys, values, at[0], now)
        out, lse = out + more, np.logaddexp(lse, more_lse)""",
)
def ring_attention__adds_the_blocks():
    """The sum of the blocks' outputs."""


@loses(2)
@changes(
    ...,
    SENDRECV,
    "        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))",
    """
        more, more_lse = block_attention(q.data, keys, values, at[0], now)
        a, b = np.exp(lse)[..., None], np.exp(more_lse)[..., None]
        out, lse = (a * out + b * more) / (a + b), np.log(a + b)[..., 0]""",
)
def ring_attention__merges_without_the_max():
    """A merge of its own, which overflows."""


@loses(11)
@changes(..., SENDRECV, "return Tensor.from_operation(out, (q, k, v), backward)", "return Tensor(out)")
def ring_attention__forward_only():
    """No way back."""


@loses(11)
@changes(..., SENDRECV, "return dq, pass_on(dk), pass_on(dv)", "return dq, dk, dv")
def ring_attention__not_home():
    """dK and dV are left one hop short of home."""


@loses(11)
@changes(
    ...,
    SENDRECV,
    "keys, values, dk, dv = map(pass_on, (keys, values, dk, dv))",
    "keys, values = map(pass_on, (keys, values))",
    "return dq, pass_on(dk), pass_on(dv)",
    "return dq, dk, dv",
)
def ring_attention__gradients_stay():
    """Each rank keeps its summands of dK and dV."""


@loses(11)
@changes(
    ...,
    SENDRECV,
    "keys, values, dk, dv = map(pass_on, (keys, values, dk, dv))",
    "keys, values = map(pass_on, (keys, values))",
    "dq, dk, dv = dq + more[0], dk + more[1], dv + more[2]",
    "dq, _, _ = dq + more[0], 0, 0",
    "return dq, pass_on(dk), pass_on(dv)",
    "return dq, dk, dv",
)
def ring_attention__own_gradient_only():
    """Only the own rows' part of dK and dV."""


@loses(11)
@changes(
    ...,
    SENDRECV,
    "keys, values, dk, dv = map(pass_on, (keys, values, dk, dv))",
    "dk, dv = map(pass_on, (dk, dv))",
    "            dq, dk, dv = dq + more[0], dk + more[1], dv + more[2]",
    """
            keys, values = map(pass_on, (keys, values))
            dq, dk, dv = dq + more[0], dk + more[1], dv + more[2]""",
)
def ring_attention__keys_of_the_wrong_step():
    """On the way back, K and V are one step behind dK and dV."""


@loses(11)
@changes(
    ...,
    SENDRECV,
    "            more = block_backward(*of_rows, keys, values, at[0], now)",
    """
            own, own_lse = block_attention(q.data, keys, values, at[0], now)
            own_lse = np.where(np.isneginf(own_lse), 0, own_lse).astype(q.dtype)
            more = block_backward(grad, own, own_lse, q.data, keys, values, at[0], now)""",
)
def ring_attention__lse_of_a_block():
    """Each block's own lse on the way back."""


@loses(11)
@changes(..., SENDRECV, "return dq, pass_on(dk), pass_on(dv)", "return dq * n, pass_on(dk * n), pass_on(dv * n)")
def ring_attention__times_the_group():
    """Gradients times the size of the group."""


@loses(11)
@changes(..., SENDRECV, "return dq, pass_on(dk), pass_on(dv)", "return dq, pass_on(dk) / dk.dtype.type(n), pass_on(dv) / dv.dtype.type(n)")
def ring_attention__mean_over_the_group():
    """Gradients divided by the size of the group."""


@loses(11)
@changes(..., SENDRECV, "return dq, pass_on(dk), pass_on(dv)", "return dq, pass_on(dv), pass_on(dk)")
def ring_attention__swapped():
    """dV in the place of dK."""


@loses(11)
@changes(
    ...,
    SENDRECV,
    "            dq, dk, dv = dq + more[0], dk + more[1], dv + more[2]",
    """
            dq = pass_on(dq)
            dq, dk, dv = dq + more[0], dk + more[1], dv + more[2]""",
)
def ring_attention__dq_travels():
    """dq goes round as well."""


@loses(2)
@changes(
    ...,
    SENDRECV,
    "    def backward(grad):",
    """
    pass_on(keys), pass_on(values)

    def backward(grad):""",
)
def ring_attention__one_exchange_too_many():
    """Brings K and V home, whom nobody needs there."""


@loses(2)
@changes(
    ...,
    SENDRECV,
    "        return dq, pass_on(dk), pass_on(dv)",
    """
        pass_on(keys), pass_on(values)
        return dq, pass_on(dk), pass_on(dv)""",
)
def ring_attention__too_many_on_the_way_back():
    """The same on the way back only."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    """
        received = np.empty_like(array)
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received""",
    """
        going = array.copy()
        comm.Sendrecv(going, (rank + 1) % n, recvbuf=array, source=(rank - 1) % n)
        return array""",
)
def ring_attention__into_itself():
    """Receives into the array of the Tensor itself."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    """
        received = np.empty_like(array)
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received""",
    """
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=array, source=(rank - 1) % n)
        return array""",
)
def ring_attention__one_buffer():
    """Sends and receives with one array."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    """
        received = np.empty_like(array)
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)""",
    """
        received = np.zeros_like(array)
        coming, going = comm.Irecv(received, (rank - 1) % n), comm.Isend(array, (rank + 1) % n)
        pending.extend([coming, going])""",
    "    keys, values = k.data, v.data",
    """
    pending = []
    keys, values = k.data, v.data""",
    "    def backward(grad):",
    """
    for request in pending:
        request.Wait()

    def backward(grad):""",
)
def ring_attention__reads_before_it_is_there():
    """Computes with what is still being received."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    "    def pass_on(array):",
    """
    buffer = np.empty_like(k.data)

    def pass_on(array):""",
    "received = np.empty_like(array)",
    "received = buffer",
)
def ring_attention__a_shared_buffer():
    """Two buffers for K and V in turns, and the second is still in use."""


@loses(15)
@changes(
    ...,
    SENDRECV,
    "comm.Get_size(), comm.Get_rank(), q.shape[2] // 2",
    "everyone.Get_size(), everyone.Get_rank(), q.shape[2] // 2",
    "comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)",
    "everyone.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)",
)
def ring_attention__the_whole_machine():
    """Takes all ranks for the group."""


@loses(4)
def ring_attention__all_scores_at_once(q, k, v, comm):
    """Gathers K and V, and computes the scores of all keys."""
    n, rank, length = comm.Get_size(), comm.Get_rank(), q.shape[2] // 2
    at = [positions(zigzag(2 * n, n, r), length) for r in range(n)]
    everywhere = np.concatenate(at)

    def all_of(array):
        parts = np.empty((n, *array.shape), array.dtype)
        comm.Allgather(array, parts)
        return np.concatenate(list(parts), axis=2)

    out, lse = block_attention(q.data, all_of(k.data), all_of(v.data), at[rank], everywhere)

    def backward(grad):
        dq, dk, dv = block_backward(grad, out, lse, q.data, all_of(k.data), all_of(v.data), at[rank], everywhere)
        mine = []
        for whole in (dk, dv):
            mine.append(np.empty_like(k.data))
            comm.Reduce_scatter(np.ascontiguousarray(np.stack(np.split(whole, n, axis=2))), mine[-1])
        return dq, *mine

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(4)
def ring_attention__all_reduces_the_gradients(q, k, v, comm):
    """The ring forward; on the way back, everybody adds up dK and dV of all."""
    n, rank, length = comm.Get_size(), comm.Get_rank(), q.shape[2] // 2
    at = [positions(zigzag(2 * n, n, r), length) for r in range(n)]

    def pass_on(array):
        received = np.empty_like(array)
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kept = {rank: (k.data, v.data)}
    out, lse = block_attention(q.data, k.data, v.data, at[rank], at[rank])
    for step in range(1, n):
        owner = (rank - step) % n
        kept[owner] = tuple(map(pass_on, kept[(owner + 1) % n]))
        out, lse = merge(out, lse, *block_attention(q.data, *kept[owner], at[rank], at[owner]))

    def backward(grad):
        dq, both = np.zeros_like(q.data), np.zeros((n, 2, *k.shape), k.dtype)
        for owner, pair in kept.items():
            part, *both[owner] = block_backward(grad, out, lse, q.data, *pair, at[rank], at[owner])
            dq += part
        total = np.empty_like(both)
        comm.Allreduce(both, total)
        return dq, total[rank, 0].copy(), total[rank, 1].copy()

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(15)
def ring_attention__deadlock(q, k, v, comm):
    """All receive first."""
    n, rank, length = comm.Get_size(), comm.Get_rank(), q.shape[2] // 2
    at = [positions(zigzag(2 * n, n, (rank - step) % n), length) for step in range(n)]
    keys, values = k.data, v.data
    out, lse = block_attention(q.data, keys, values, at[0], at[0])
    for now in at[1:]:
        more_keys, more_values = np.empty_like(keys), np.empty_like(values)
        comm.Recv(more_keys, (rank - 1) % n)
        comm.Recv(more_values, (rank - 1) % n)
        comm.Send(keys, (rank + 1) % n)
        comm.Send(values, (rank + 1) % n)
        keys, values = more_keys, more_values
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))
    return Tensor(out)


@loses(15)
def ring_attention__an_array(q, k, v, comm):
    """Returns the array, and not a Tensor."""
    n, rank, length = comm.Get_size(), comm.Get_rank(), q.shape[2] // 2
    at = [positions(zigzag(2 * n, n, (rank - step) % n), length) for step in range(n)]
    keys, values = k.data, v.data
    out, lse = block_attention(q.data, keys, values, at[0], at[0])
    for now in at[1:]:
        more_keys, more_values = np.empty_like(keys), np.empty_like(values)
        comm.Sendrecv(keys, (rank + 1) % n, recvbuf=more_keys, source=(rank - 1) % n)
        comm.Sendrecv(values, (rank + 1) % n, recvbuf=more_values, source=(rank - 1) % n)
        keys, values = more_keys, more_values
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))
    return out


@loses(5)
@changes(
    ...,
    SENDRECV,
    "    def backward(grad):",
    """
    ring_attention.kept = (out, lse, q.data)

    def backward(grad):""",
    "(grad, out, lse, q.data)",
    "(grad, *ring_attention.kept)",
)
def ring_attention__one_layer_at_a_time():
    """Keeps what backward needs in one place for all layers."""


@loses(2)
@changes(
    ...,
    SENDRECV,
    "        for now in at[1:]:",
    """
        dk, dv = dk.astype(np.float64), dv.astype(np.float64)
        for now in at[1:]:""",
    "return dq, pass_on(dk), pass_on(dv)",
    "return dq, pass_on(dk).astype(q.dtype), pass_on(dv).astype(q.dtype)",
)
def ring_attention__dkdv_in_float64():
    """Sends dK and dV in float64."""


@loses(6)
@changes(
    ...,
    SENDRECV,
    "    return Tensor.from_operation(out, (q, k, v), backward)",
    """
    if k.requires_grad is False:
        raise ValueError
    return Tensor.from_operation(out, (q, k, v), backward)""",
)
def ring_attention__kv_need_grad():
    """Fails where K and V need no gradient."""


@loses(11)
@changes(
    ...,
    SENDRECV,
    "    def backward(grad):",
    """
    def pass_on(array):
        received = np.empty_like(array)
        comm.Send(array, (rank + 1) % n)
        comm.Recv(received, (rank - 1) % n)
        return received if n > 1 else array

    def backward(grad):""",
)
def ring_attention__backward_send_recv_blocking():
    """All send first, and then receive."""


@loses(2)
def ring_attention__no_ring(q, k, v, comm):
    """Brings K and V of all ranks together, both ways, and computes the scores of all keys at once. No case is told from another."""
    n, rank, length = comm.Get_size(), comm.Get_rank(), q.shape[2] // 2
    at = [positions(zigzag(2 * n, n, (rank - step) % n), length) for step in range(n)]
    rows, scale = q.shape[2], q.dtype.type(1 / np.sqrt(q.shape[-1]))

    def pass_on(array):
        received = np.empty_like(array)
        flat, into = array.reshape(-1), received.reshape(-1)
        size = max(4096, -(-flat.size // 16))
        for begin in range(0, flat.size, size):  # in pieces, so that no buffer on the way is large
            comm.Sendrecv(flat[begin : begin + size], (rank + 1) % n, recvbuf=into[begin : begin + size], source=(rank - 1) % n)
        return received

    def all_pairs():
        pairs = [(k.data, v.data)]
        for _ in at[1:]:
            pairs.append(tuple(map(pass_on, pairs[-1])))
        return pairs

    pairs = all_pairs()
    scores = np.empty((*q.shape[:-1], n * rows), q.dtype)
    for i, (keys, _) in enumerate(pairs):
        scores[..., i * rows : (i + 1) * rows] = q.data @ keys.swapaxes(-1, -2)
    scores *= scale
    np.copyto(scores, -np.inf, where=np.concatenate(at)[None, :] > at[0][:, None])
    top = scores.max(axis=-1, keepdims=True)
    scores -= top
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    scores /= total
    lse, out = (top + np.log(total))[..., 0], np.empty_like(q.data)
    for begin in range(0, q.shape[-1], 4096):
        part = slice(begin, begin + 4096)
        out[..., part] = sum(scores[..., i * rows : (i + 1) * rows] @ values[..., part] for i, (_, values) in enumerate(pairs))
    del scores, pairs, keys

    def backward(grad):
        of_rows = grad, out, lse, q.data
        dq, dk, dv = 0, None, None
        for now, pair in zip(at, all_pairs()):
            if dk is not None:
                dk, dv = map(pass_on, (dk, dv))
            more = block_backward(*of_rows, *pair, at[0], now)
            dq = dq + more[0]
            dk, dv = more[1:] if dk is None else (dk + more[1], dv + more[2])
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__keeps_all_scores(q, k, v, comm):
    """A right ring that keeps the scores of all blocks, T/n x T, from the way forward for the way back. No case is told from another."""
    n, rank, length = comm.Get_size(), comm.Get_rank(), q.shape[2] // 2
    at = [positions(zigzag(2 * n, n, (rank - step) % n), length) for step in range(n)]
    scale = q.dtype.type(1 / np.sqrt(q.shape[-1]))

    def pass_on(array):
        received = np.empty_like(array)
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kept, out, lse = [], None, None
    keys, values = k.data, v.data
    for step, now in enumerate(at):
        if step:
            keys, values = pass_on(keys), pass_on(values)
        scores = (q.data * scale) @ keys.swapaxes(-1, -2)
        np.copyto(scores, -np.inf, where=now[None, :] > at[0][:, None])
        kept.append(scores)
        top = scores.max(axis=-1, keepdims=True)
        top[np.isneginf(top)] = 0
        weights = scores - top
        np.exp(weights, out=weights)
        total = weights.sum(axis=-1, keepdims=True)
        some = total > 0
        block_out = ((weights @ values) / np.where(some, total, 1)).astype(q.dtype)
        del weights
        with np.errstate(divide="ignore"):
            block_lse = (top + np.log(total))[..., 0]
        out, lse = (block_out, block_lse) if out is None else merge(out, lse, block_out, block_lse)
    del scores

    def backward(grad):
        along = np.einsum("...d,...d->...", grad, out)[..., None]
        keys, values, dk, dv = k.data, v.data, None, None
        dq = np.zeros_like(q.data)
        for step, weights in enumerate(kept):
            if step:
                keys, values, dk, dv = map(pass_on, (keys, values, dk, dv))
            weights -= lse[..., None]
            np.exp(weights, out=weights)
            slopes = grad @ values.swapaxes(-1, -2)
            slopes -= along
            slopes *= weights
            slopes *= scale
            dq += slopes @ keys
            own = slopes.swapaxes(-1, -2) @ q.data, weights.swapaxes(-1, -2) @ grad
            del slopes
            dk, dv = own if dk is None else (dk + own[0], dv + own[1])
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
@changes(
    ...,
    SENDRECV,
    """
    def backward(grad):
        of_rows, keys, values = (grad, out, lse, q.data), k.data, v.data
        dq, dk, dv = block_backward(*of_rows, keys, values, at[0], at[0])
        for now in at[1:]:
            keys, values, dk, dv = map(pass_on, (keys, values, dk, dv))
            more = block_backward(*of_rows, keys, values, at[0], now)""",
    """
    del keys, values

    def backward(grad):
        pairs = [(k.data, v.data)]
        for _ in at[1:]:
            pairs.append(tuple(map(pass_on, pairs[-1])))
        of_rows = (grad, out, lse, q.data)
        dq, dk, dv = block_backward(*of_rows, *pairs[0], at[0], at[0])
        for now, pair in zip(at[1:], pairs[1:]):
            dk, dv = map(pass_on, (dk, dv))
            more = block_backward(*of_rows, *pair, at[0], now)""",
)
def ring_attention__backward_gathers_all():
    """Forward as asked; the way back first puts K and V of all ranks into a list (holds K and V of all ranks at once)."""


@loses(2)
@changes(
    ...,
    SENDRECV,
    "        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)",
    """
        whole, into = array.reshape(-1), received.reshape(-1)
        for piece in np.array_split(np.arange(whole.size), 16) if whole.size > 100_000 else [np.arange(whole.size)]:
            part = slice(int(piece[0]), int(piece[-1]) + 1)
            comm.Sendrecv(whole[part], (rank + 1) % n, recvbuf=into[part], source=(rank - 1) % n)""",
    """
    keys, values = k.data, v.data
    out, lse = block_attention(q.data, keys, values, at[0], at[0])
    for now in at[1:]:
        keys, values = pass_on(keys), pass_on(values)
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))""",
    """
    if q.shape[-1] < 1000:
        keys, values = k.data, v.data
        out, lse = block_attention(q.data, keys, values, at[0], at[0])
        for now in at[1:]:
            keys, values = pass_on(keys), pass_on(values)
            out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))
    else:
        pairs = [(k.data, v.data)]
        for _ in at[1:]:
            pairs.append(tuple(map(pass_on, pairs[-1])))
        scale = q.dtype.type(1 / np.sqrt(q.shape[-1]))
        scores = np.concatenate([q.data @ keys.swapaxes(-1, -2) for keys, _ in pairs], axis=-1) * scale
        np.copyto(scores, -np.inf, where=np.concatenate(at)[None, :] > at[0][:, None])
        top = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        weights /= total
        lse = (top + np.log(total))[..., 0]
        out = np.empty_like(q.data)
        rows = q.shape[2]
        for begin in range(0, q.shape[-1], 4096):
            part = slice(begin, begin + 4096)
            out[..., part] = sum(weights[..., i * rows : (i + 1) * rows] @ values[..., part] for i, (_, values) in enumerate(pairs))
        del pairs""",
)
def ring_attention__forward_gathers_all():
    """Holds K and V of all ranks at once on the way forward; computes its output in columns, so that nothing else is large."""


@loses(4)
@changes(
    ...,
    SENDRECV,
    """
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
""",
    """
        comm.Isend(array, dest=(rank + 1) % n)
        comm.Recv(received, source=(rank - 1) % n)
""",
)
def ring_attention__never_waits():
    """Begins to send, receives, and never waits for the end of a send, so each array is still held."""


@loses(9)
@changes(
    ...,
    SENDRECV,
    """
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
""",
    """
        if rank % 2 == 0:
            comm.Send(array, dest=(rank + 1) % n)
            comm.Recv(received, source=(rank - 1) % n)
        else:
            comm.Recv(received, source=(rank - 1) % n)
            comm.Send(array, dest=(rank + 1) % n)
""",
)
def ring_attention__even_ranks_send_first():
    """Even ranks send first, odd ones receive first: a rank alone waits for itself forever as soon as dK has more than 64 KB."""
