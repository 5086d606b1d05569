"""Order of a pipeline rank's work: 1F1B, and interleaved 1F1B (Narayanan et al., 2021, section 2.2)."""

from __future__ import annotations

WorkItem = tuple[bool, int, int]  # whether it is forward, chunk, micro-batch


def work_order(rank: int, ranks: int, chunks: int, micro_batches: int) -> list[WorkItem]:
    """List the work of a rank in order.

    Parameters
    ----------
    rank, ranks : int
        The rank's number, and the number of pipeline ranks.
    chunks : int
        Chunks of layers per rank; more than one only if `ranks` divides `micro_batches`.
    micro_batches : int

    Returns
    -------
    list of (bool, int, int)
        Whether it is forward, the chunk, the micro-batch.

    Examples
    --------
    >>> [f"{'F' if forward else 'B'}{k}" for forward, _, k in work_order(0, 2, 1, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    total = chunks * micro_batches
    first = min(warmup_forwards(rank, ranks, chunks), total)
    forward = [(True, *_chunk_and_micro_batch(i, ranks, chunks)) for i in range(total)]
    backward = [(False, chunks - 1 - chunk, k) for chunk, k in (_chunk_and_micro_batch(i, ranks, chunks) for i in range(total))]
    found = forward[:first]
    for ahead, behind in zip(forward[first:], backward, strict=False):
        found += [ahead, behind]
    return found + backward[total - first :]


def work_orders(ranks: int, chunks: int, micro_batches: int) -> list[list[tuple[str, int, int]]]:
    """List the work of all ranks in order, as `sim.schedule.schedules` draws it: "forward" or "backward", the micro-batch, the chunk.

    >>> work_orders(1, 1, 2)
    [[('forward', 0, 0), ('backward', 0, 0), ('forward', 1, 0), ('backward', 1, 0)]]
    """
    each = [work_order(rank, ranks, chunks, micro_batches) for rank in range(ranks)]
    return [[("forward" if forward else "backward", k, chunk) for forward, chunk, k in work] for work in each]


def warmup_forwards(rank: int, ranks: int, chunks: int) -> int:
    """Number of forwards of a rank before forwards and backwards alternate."""
    return ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks


def _chunk_and_micro_batch(i: int, ranks: int, chunks: int) -> tuple[int, int]:
    """Chunk and micro-batch of a rank's i-th forward: as many micro-batches as there are ranks with one chunk, then with the next."""
    if chunks == 1:
        return 0, i
    group, rest = divmod(i, ranks * chunks)
    return rest // ranks, group * ranks + rest % ranks
