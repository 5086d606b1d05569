"""Costs of a training step on one rank: bytes sent by axis of the grid, and memory by kind."""

from __future__ import annotations

from course_lib import memory, traffic
from course_lib.gpt.settings import Settings
from course_lib.gpt.training.trainer import Trainer


def axis_of(settings: Settings, rank: int, ranks: tuple[int, ...]) -> str | None:
    """Axis along which some ranks exchange; None if they differ along several, as all ranks do for the loss of a step.

    The replicas' exchange of gradients, which goes along dp and cp at once, counts as dp.

    >>> axis_of(Settings(dp=2, pp=2, tp=2), 0, (0, 1)), axis_of(Settings(dp=2, pp=2, tp=2), 0, (0, 2))
    ('tp', 'pp')
    >>> axis_of(Settings(dp=2, cp=2), 0, (0, 1)), axis_of(Settings(dp=2, cp=2), 0, (0, 1, 2, 3))
    ('cp', 'dp')
    """
    inside = [axis for axis, size in settings.mesh.shape.items() if size > 1 and set(ranks) <= set(settings.mesh.group(axis, rank))]
    if not inside and settings.cp > 1 and any(set(ranks) <= set(group) for group in settings.mesh.groups("dp", "cp")):
        return "dp"
    return inside[0] if inside else None


def bytes_by_axis(trainer: Trainer, steps: int = 1) -> dict[str, float]:
    """Bytes that this rank sent per step, by axis, since `traffic.reset`.

    Parameters
    ----------
    trainer : Trainer
    steps : int
        Number of steps since then.

    Returns
    -------
    dict of str to float
        For each axis of the grid with more than one rank; wire bytes with the ring algorithm, see `course_lib.traffic`.
    """
    found = {axis: 0.0 for axis, size in trainer.settings.mesh.shape.items() if size > 1}
    for entry in traffic.entries():
        axis = axis_of(trainer.settings, trainer.groups.rank, entry.ranks)
        if axis:
            found[axis] += entry.wire / steps
    return found


def memory_by_kind(trainer: Trainer) -> dict[str, int]:
    """Peak bytes of this rank by kind, in one step, which this function takes; collective.

    Parameters
    ----------
    trainer : Trainer
        It must have taken a step before, so that the optimizer has its state.

    Returns
    -------
    dict of str to int
        "activations" includes everything temporary: gradients of whole blocks and buffers, too.
    """
    trainer.optimizer.zero_grad()
    with memory.watch() as account:
        trainer.train_step()
    params, state = trainer.optimizer.params, trainer.optimizer.state.values()
    kept = sum(p.grad.nbytes for p in params if p.grad is not None)
    return {
        "parameters": sum(p.data.nbytes for p in params),
        "gradients": kept,
        "optimizer state": sum(first.nbytes + second.nbytes for _, first, second in state),
        "activations": max(account.true_peak - kept, 0),
    }
