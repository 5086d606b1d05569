"""What a step of a GPT's training costs a rank: bytes by axis of the grid, and memory by kind."""

from __future__ import annotations

from course_lib import memory, traffic
from course_lib.gpt.settings import Settings
from course_lib.gpt.training.trainer import Trainer


def axis_of(settings: Settings, rank: int, ranks: tuple[int, ...]) -> str | None:
    """The axis along which some ranks exchange; None where they differ in several, as all ranks do for the loss of a step.

    >>> axis_of(Settings(dp=2, pp=2, tp=2), 0, (0, 1)), axis_of(Settings(dp=2, pp=2, tp=2), 0, (0, 2))
    ('tp', 'pp')
    """
    inside = [axis for axis, size in settings.mesh.shape.items() if size > 1 and set(ranks) <= set(settings.mesh.group(axis, rank))]
    return inside[0] if inside else None


def bytes_by_axis(trainer: Trainer, steps: int = 1) -> dict[str, float]:
    """Bytes that this rank has sent in a step, by axis, since `traffic.reset`.

    Parameters
    ----------
    trainer : Trainer
    steps : int
        How many steps there were since then.

    Returns
    -------
    dict of str to float
        For each axis of the grid with more than one rank; on the wire, with rings, see `course_lib.traffic`.
    """
    found = {axis: 0.0 for axis, size in trainer.settings.mesh.shape.items() if size > 1}
    for entry in traffic.entries():
        axis = axis_of(trainer.settings, trainer.groups.rank, entry.ranks)
        if axis:
            found[axis] += entry.wire / steps
    return found


def memory_by_kind(trainer: Trainer) -> dict[str, int]:
    """Bytes of this rank by kind, at the most in a step, which it takes; collective.

    Parameters
    ----------
    trainer : Trainer
        It has taken a step already: the optimizer has its state.

    Returns
    -------
    dict of str to int
        What comes and goes in a step, its activations, gradients of whole blocks and buffers, stands under "activations".
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
