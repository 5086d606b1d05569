"""Assignment of samples to micro-batches."""

from __future__ import annotations

from collections.abc import Iterator


def get_global_batch_list(global_batch_size: int, batch_size: int) -> list[list[int]]:
    """Split all samples into micro-batches; the last one may be smaller.

    >>> get_global_batch_list(5, 2)
    [[0, 1], [2, 3], [4]]
    """
    _check(global_batch_size=global_batch_size, batch_size=batch_size)
    return [list(range(start, min(start + batch_size, global_batch_size))) for start in range(0, global_batch_size, batch_size)]


def get_next_microbatch(global_batch_size: int, world_size: int, batch_size: int, rank: int) -> Iterator[list[int]]:
    """Yield one rank's share of the samples in data parallel training, micro-batch by micro-batch; the last one may be smaller.

    Raises
    ------
    ValueError
        The samples cannot be split equally.

    Examples
    --------
    >>> list(get_next_microbatch(8, 2, 3, rank=1))
    [[4, 5, 6], [7]]
    """
    _check(global_batch_size=global_batch_size, world_size=world_size, batch_size=batch_size)
    share, rest = divmod(global_batch_size, world_size)
    if rest:
        raise ValueError(f"get_next_microbatch: {world_size} ranks cannot share {global_batch_size} samples equally.")
    if not 0 <= rank < world_size:
        raise ValueError(f"get_next_microbatch: rank must be 0 to {world_size - 1}; got {rank!r}.")
    return iter([[rank * share + sample for sample in batch] for batch in get_global_batch_list(share, batch_size)])


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a whole number, 1 or more; got {size!r}.")
