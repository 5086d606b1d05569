"""What a step of a wrapped model needs on a rank: which blocks are whole when, the memory, the bytes."""

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
    """Which blocks are whole while each of them works, in one step; collective.

    Parameters
    ----------
    wrap : callable
        Given a module and `comm`: a fully sharded module, whose `shards` say in `whole` whether they are here.
    blocks : list of Module
        Of the model, one after the other.
    comm : Communicator
    tokens : numpy.ndarray
        int ``(batch, positions)``.

    Returns
    -------
    moments : list of (str, int, list of bool)
        "F" or "B", which block works, and which are here, or on their way.
    names : list of str
        Of the blocks.
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
        As for `gathered_blocks`; any wrapper.
    layers : callable
        Makes the model's layers.
    steps : int

    Returns
    -------
    dict
        "losses" of this rank; "kept", the bytes that it holds between steps; "moved", what it sent, as `Ranks.traffic`.
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
