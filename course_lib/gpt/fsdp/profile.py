"""Profile of a step of a wrapped model on one rank: blocks in traces, memory, bytes sent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib import memory, traffic
from course_lib.autograd import Adam, Module, Sequential
from course_lib.gpt.fsdp.wrapping import Hooked
from course_lib.gpt.model.decoder import loss_of
from course_lib.trace import span


def name_blocks(model: Hooked) -> Hooked:
    """Have traces show when the blocks of a wrapped model run: spans "forward" and "backward", with the number of the block.

    In the backward pass, a span includes the forward that runs again.
    """
    hooks, running = {"before": model.before, "after": model.after}, []

    def before(i: int, back: bool) -> None:
        hooks["before"](i, back)
        running.append(span("backward" if back else "forward", block=i).__enter__())

    def after(i: int, back: bool) -> None:
        running.pop().__exit__()
        hooks["after"](i, back)

    model.before, model.after = before, after
    return model


def train(wrap: Callable, layers: Callable[[], list[Module]], comm: object, tokens: np.ndarray, steps: int = 6) -> dict:
    """Train with Adam for some steps; collective.

    Parameters
    ----------
    wrap : callable
        Wraps a module, given `comm`.
    layers : callable
        Makes the model's layers.
    comm : Communicator
    tokens : numpy.ndarray
        int ``(batch, positions)``.
    steps : int

    Returns
    -------
    dict
        "losses" of this rank; "kept", the bytes it holds between steps; "moved", what it sent, as in `Ranks.traffic`.
    """
    losses, labels = [], np.roll(tokens, -1, axis=1)
    with memory.watch() as account:
        model = wrap(Sequential(*layers()), comm)
        optimizer = Adam(model.parameters(), 1e-3)
        traffic.reset()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(model(tokens), labels)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            del loss
    return dict(losses=losses, kept=account.true_now, moved=[(e.operation, list(e.ranks), e.calls, e.payload) for e in traffic.entries()])
