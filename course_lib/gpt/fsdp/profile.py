"""Profile of a step of a wrapped model on one rank: gathered blocks, memory, bytes sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from course_lib import memory, traffic
from course_lib.autograd import Adam, Module, Sequential
from course_lib.gpt.model.decoder import loss_of


def gathered_blocks(
    wrap: Callable, blocks: list[Module], comm: object, tokens: np.ndarray
) -> tuple[list[tuple[str, int, list[bool]]], list[str]]:
    """Record which blocks are whole while each block runs, in one step; collective.

    Parameters
    ----------
    wrap : callable
        Wraps a module, given `comm`, into a fully sharded one, whose `shards` are gathered while their `whole` is not None.
    blocks : list of Module
        Blocks of the model, in order.
    comm : Communicator
    tokens : numpy.ndarray
        int ``(batch, positions)``.

    Returns
    -------
    moments : list of (str, int, list of bool)
        "F" or "B", the number of the block that runs, and for each block whether it is gathered, or being gathered.
    names : list of str
        Names of the blocks.
    """
    found: list[tuple[str, int, list[bool]]] = []

    def noting(i: int, forward: Callable, x: object) -> object:
        kind = "B" if any(block == i for _, block, _ in found) else "F"
        found.append((kind, i, [shard.whole is not None for shard in model.shards]))
        return forward(x)

    for i, block in enumerate(blocks):
        block.forward = partial(noting, i, block.forward)
    model = wrap(Sequential(*blocks), comm)
    loss_of(model(tokens), np.roll(tokens, -1, axis=1)).backward()
    return found, [type(block).__name__ for block in blocks]


def train(wrap: Callable, layers: Callable[[], list[Module]], comm: object, tokens: np.ndarray, steps: int = 6) -> dict:
    """Train with Adam for some steps; collective.

    Parameters
    ----------
    wrap, comm, tokens
        As for `gathered_blocks`; any wrapper will do.
    layers : callable
        Makes the model's layers.
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
