"""Profile of a step of a wrapped model on one rank: blocks in traces, memory, bytes sent."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np

from course_lib import memory, traffic
from course_lib.autograd import Adam, Module, Sequential
from course_lib.gpt.fsdp.wrapping import Hooked
from course_lib.gpt.model.decoder import Sizes, layers, loss_of
from course_lib.trace import span

SMALL = Sizes(vocabulary=64, width=128, heads=4, depth=2, length=32)  # a model of four blocks


def name_blocks(model: Hooked) -> Hooked:
    """Have traces show when the blocks of a wrapped model run: spans "forward" and "backward", with the number of the block."""
    hooks, running = {"before": model.before, "after": model.after}, []

    def before(i: int, back: bool) -> None:
        hooks["before"](i, back)
        running.append(span("backward" if back else "forward", block=i).__enter__())

    def after(i: int, back: bool) -> None:
        running.pop().__exit__()
        hooks["after"](i, back)

    model.before, model.after = before, after
    return model


def held_in_step(wrap: Callable, comm: object, sizes: Sizes = SMALL, batch: int = 2) -> tuple[list[tuple], list[str]]:
    """Measure what a rank holds during a step, for `plots.moving.fully_sharded`; collective.

    A trace of it has the spans of `name_blocks`.

    Parameters
    ----------
    wrap : callable
        Wraps a module, given `comm`, into a fully sharded one, whose `shards` are gathered while their `whole` is not None.
    comm : Communicator
    sizes : Sizes
        Sizes of the model.
    batch : int
        Number of texts on each rank.

    Returns
    -------
    moments : list of (str, bool, int, list of bool, int)
        "gather", "compute" or "free": the moment after it; whether it is in backward; the block; for each shard whether its `whole` is not
        None; and the bytes that Python and NumPy have allocated since before the model was made: its shards and more.
    names : list of str
        Names of the blocks.
    """
    found: list[tuple] = []

    def note(moment: str, block: int, back: bool) -> None:
        whole = [shard.whole is not None for shard in model.shards]
        found.append((moment, back, block, whole, tracemalloc.get_traced_memory()[0] - base))

    def before(i: int, back: bool) -> None:
        named["before"](i, back)
        note("gather", i, back)

    def after(i: int, back: bool) -> None:
        note("compute", i, back)
        named["after"](i, back)
        note("free", i, back)

    tokens = np.random.default_rng(comm.Get_rank()).integers(0, sizes.vocabulary, (batch, sizes.length))
    with memory.watch():
        base = tracemalloc.get_traced_memory()[0]
        blocks = layers(sizes)
        names = [type(block).__name__ for block in blocks]
        model = name_blocks(wrap(Sequential(*blocks), comm))
        named = {"before": model.before, "after": model.after}
        model.before, model.after = before, after
        loss_of(model(tokens), np.roll(tokens, -1, axis=1)).backward()
    return found, names


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
