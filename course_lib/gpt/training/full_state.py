"""Full state of a training run, independent of the grid: written to checkpoints, and restored on any grid.

An array that is sharded along a dimension is written with this dimension first. So the ranks' parts, concatenated, are the whole array,
and each rank can write its part; ranks with identical copies split the array among them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from course_lib.gpt.broadcast_text import first_nonempty
from course_lib.gpt.training.trainer import ParameterInfo, Trainer
from course_lib.placement import replicated

STATE_KINDS = ("parameters", "first moment", "second moment")
LOSSES_KEY = "losses"


class CheckpointMismatch(ValueError):
    """The state belongs to another model; the message says where they differ."""


def single_rank_trainer(trainer: Trainer) -> Trainer:
    """Make the same model, untrained and unsharded, on each rank; collective."""
    settings = trainer.settings
    one = {"dp": 1, "pp": 1, "cp": 1, "tp": 1, "sequence": False, "fsdp": False, "micro_batches": 1}
    everyone = trainer.groups.everyone
    comm = everyone.Split(color=everyone.Get_rank())
    return Trainer(type(settings)(**vars(settings) | one), trainer.functions, comm, trainer.text)


def parameter_count(trainer: Trainer) -> int:
    """Number of parameters of the whole model. Collective."""
    return sum(int(np.prod(shape)) for shape in _full_shapes(trainer).values())


def local_shards(trainer: Trainer) -> dict[str, np.ndarray]:
    """This rank's parts, flat, by name; concatenated in the order of ``groups.ordered``, they are the full state. Collective."""
    found = {f"{kind}/{name}": np.empty(0, np.float32) for kind in STATE_KINDS for name in _full_shapes(trainer)}
    for kind in STATE_KINDS:
        for entry, array in _local_arrays(trainer, kind):
            found[f"{kind}/{entry.name}"] = _local_share(trainer, entry, array)
    first = trainer.groups.ordered.Get_rank() == 0
    found[LOSSES_KEY] = np.array(trainer.losses if first else [])
    return found


def gather_shards(comm: object, part: np.ndarray, length: int) -> np.ndarray:
    """Gather an array of `length` numbers, of which each rank holds the part that part 27's `load` gives it. Collective."""
    n = comm.Get_size()
    each = -(-length // n)
    mine, whole = np.zeros(each, part.dtype), np.empty(each * n, part.dtype)
    mine[: len(part)] = part
    comm.Allgather(mine, whole)
    return whole[:length]


def restore(trainer: Trainer, step: int, loaded: dict[str, np.ndarray]) -> None:
    """Continue from what part 27's `load` returned on ``groups.ordered``. Collective.

    Parameters
    ----------
    trainer : Trainer
        On any grid.
    step : int
    loaded : dict of str to numpy.ndarray
        This rank's parts, cut for the new grid.

    Raises
    ------
    CheckpointMismatch
        The checkpoint belongs to another model. All ranks raise it, and nothing is restored.
    """
    comm, shapes = trainer.groups.ordered, _full_shapes(trainer)
    wanted = {f"{kind}/{name}": int(np.prod(shape)) for kind in STATE_KINDS for name, shape in shapes.items()} | {LOSSES_KEY: step}
    said = first_nonempty(comm, _mismatch(loaded, wanted, comm))
    if said:
        raise CheckpointMismatch(said)
    for kind in STATE_KINDS:
        whole: dict[str, np.ndarray] = {}
        mine = {entry.name: entry for layer in trainer.parameter_infos for entry in layer}
        for name, shape in shapes.items():
            key = f"{kind}/{name}"
            flat = gather_shards(comm, loaded[key].astype(np.float32), wanted[key])
            if name in mine:
                whole[name] = _local_part(trainer, mine[name], flat.reshape(shape))
        _set_arrays(trainer, kind, whole, step)
    trainer.losses = gather_shards(comm, loaded[LOSSES_KEY].astype(float), step).tolist()
    trainer.step = step


def copy_parameters(trainer: Trainer, onto: Trainer) -> None:
    """Copy the parameters to another grid's trainer; both are on all ranks. Collective."""
    comm, shapes = trainer.groups.ordered, _full_shapes(trainer)
    found = dict.fromkeys(shapes, None)
    mine = {entry.name: _local_share(trainer, entry, array) for entry, array in _local_arrays(trainer, STATE_KINDS[0])}
    targets = {entry.name: entry for layer in onto.parameter_infos for entry in layer}
    for name, shape in shapes.items():
        flat = _all_gather_ragged(comm, mine.get(name, np.empty(0, np.float32)))
        if name in targets:
            found[name] = _local_part(onto, targets[name], flat.reshape(shape))
    _set_arrays(onto, STATE_KINDS[0], found, trainer.step)


def _all_gather_ragged(comm: object, part: np.ndarray) -> np.ndarray:
    """Concatenate the ranks' parts, which may differ in length."""
    lengths = np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([len(part)]), lengths)
    most = int(lengths.max())
    mine, all_of_them = np.zeros(most, part.dtype), np.empty((len(lengths), most), part.dtype)
    mine[: len(part)] = part
    comm.Allgather(mine, all_of_them)
    return np.concatenate([row[:length] for row, length in zip(all_of_them, lengths, strict=True)])


def _mismatch(loaded: dict, wanted: dict[str, int], comm: object) -> str:
    """Describe how a checkpoint's names and lengths differ from the expected ones; empty if they do not."""
    if loaded.keys() != wanted.keys():
        more, less = sorted(loaded.keys() - wanted.keys()), sorted(wanted.keys() - loaded.keys())
        which = f"it has {more[0]}, which this model does not have" if more else f"it has no {less[0]}"
        return f"the checkpoint is from another model: {which}."
    n, rank = comm.Get_size(), comm.Get_rank()
    for name, length in wanted.items():
        each = -(-length // n)
        mine = max(min((rank + 1) * each, length) - rank * each, 0)
        if loaded[name].shape != (mine,):
            return (
                f"the checkpoint is from another model: {name} has {length} numbers in this model, of which rank {rank} of {n} must get "
                f"{mine}; it got {loaded[name].shape}."
            )
    return ""


def _full_shapes(trainer: Trainer) -> dict[str, tuple[int, ...]]:
    """Shapes of the full arrays by name, with the sharded dimension first; the same on all ranks."""
    if not trainer.shapes:
        one = single_rank_trainer(trainer)
        trainer.shapes = {
            entry.name: tuple(np.moveaxis(np.empty(entry.shape, bool), _sharded_dim(entry), 0).shape)
            for layer in one.parameter_infos
            for entry in layer
        }
    return trainer.shapes


def _sharded_dim(entry: ParameterInfo) -> int:
    return 0 if entry.kind == replicated else entry.kind.dim


def _shard_count_and_index(trainer: Trainer, entry: ParameterInfo) -> tuple[int, int]:
    """Number of shards of an array along its first dimension, and the index of this rank's shard."""
    groups = trainer.groups
    comm = groups.replicas if entry.expert else groups.tp
    return (1, 0) if entry.kind == replicated and not entry.expert else (comm.Get_size(), comm.Get_rank())


def _local_share(trainer: Trainer, entry: ParameterInfo, array: np.ndarray) -> np.ndarray:
    """Part of its array that this rank writes; ranks that hold the same array write it once between them."""
    flat, groups = np.moveaxis(array, _sharded_dim(entry), 0).ravel(), trainer.groups
    if entry.kind == replicated and groups.tp.Get_rank() > 0:
        return flat[:0].copy()
    if entry.expert:
        return flat.copy()
    return np.array_split(flat, groups.replicas.Get_size())[groups.replicas.Get_rank()].copy()


def _local_part(trainer: Trainer, entry: ParameterInfo, whole: np.ndarray) -> np.ndarray:
    """This rank's part of a whole array."""
    n, index = _shard_count_and_index(trainer, entry)
    return np.ascontiguousarray(np.moveaxis(np.split(whole, n)[index], 0, _sharded_dim(entry)))


def _optimizer_arrays(trainer: Trainer, kind: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the index and the values, or moments, of each of the optimizer's parameters."""
    for i, p in enumerate(trainer.optimizer.params):
        _, *moments = trainer.optimizer.state.get(i) or (0, np.zeros_like(p.data), np.zeros_like(p.data))
        yield i, [p.data, *moments][STATE_KINDS.index(kind)]


def _local_arrays(trainer: Trainer, kind: str) -> Iterator[tuple[ParameterInfo, np.ndarray]]:
    """Yield this rank's arrays of a kind; if fully sharded, they are gathered layer by layer."""
    if not trainer.settings.fsdp:
        found = {id(trainer.optimizer.params[i]): array for i, array in _optimizer_arrays(trainer, kind)}
        yield from ((entry, found[id(entry.parameter)]) for layer in trainer.parameter_infos for entry in layer)
        return
    for (_, mine), layer, flat in zip(_optimizer_arrays(trainer, kind), trainer.parameter_infos, trainer.flat_buffers, strict=True):
        whole = np.empty(flat.length, mine.dtype)
        trainer.groups.replicas.Allgather(mine, whole)
        yield from zip(layer, flat.cut(whole), strict=True)


def _set_arrays(trainer: Trainer, kind: str, arrays: dict[str, np.ndarray], step: int) -> None:
    """Set this rank's arrays of a kind."""
    state, params = trainer.optimizer.state, trainer.optimizer.params
    if trainer.settings.fsdp:
        rank, n = trainer.groups.replicas.Get_rank(), trainer.settings.replicas
        found = zip(trainer.flat_buffers, trainer.parameter_infos, strict=True)
        new = [np.split(flat.join([arrays[e.name] for e in layer]), n)[rank] for flat, layer in found]
    else:
        names = {id(entry.parameter): entry.name for layer in trainer.parameter_infos for entry in layer}
        new = [arrays[names[id(p)]] for p in params]
    for i, (p, array) in enumerate(zip(params, new, strict=True)):
        if kind == STATE_KINDS[0]:
            p.data[...] = array
            continue
        _, first, second = state.get(i) or (0, np.zeros_like(p.data), np.zeros_like(p.data))
        (first if kind == STATE_KINDS[1] else second)[...] = array
        state[i] = step, first, second
