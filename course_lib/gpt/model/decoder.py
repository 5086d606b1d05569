"""A small GPT (Radford et al., 2019, "Language models are unsupervised multitask learners", section 2.3), as a list of layers.

Each layer draws its own weights, so a rank of a pipeline builds only the layers it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from course_lib.autograd import Embedding, LayerNorm, Module, Parameter, Tensor
from course_lib.autograd.functional import embedding
from course_lib.autograd.operations import cross_entropy
from course_lib.gpt.model.block import Block, ParallelLinear, no_communication


@dataclass(frozen=True)
class Sizes:
    """Sizes of a GPT.

    Parameters
    ----------
    vocabulary : int
        Number of different tokens.
    width, heads : int
        Width and number of heads of a block.
    depth : int
        Number of blocks.
    length : int
        Largest number of positions in a text.
    """

    vocabulary: int
    width: int
    heads: int
    depth: int
    length: int


class Embed(Module):
    """Token and position embeddings: the sum of a row for the token and a row for its position.

    Parameters
    ----------
    sizes : Sizes
    random : numpy.random.Generator
    dtype : data type
    comm : Communicator, optional
        Ranks that share the positions (sequence parallelism): given all tokens, each embeds its own positions.
    positions : numpy.ndarray, optional
        int: where the given tokens stand in the text (context parallelism); by default at its beginning.
    """

    def __init__(
        self, sizes: Sizes, random: np.random.Generator, dtype=np.float32, comm: object = None, positions: np.ndarray | None = None
    ):
        self.comm, self.positions = comm, positions
        self.words = Embedding(sizes.vocabulary, sizes.width, random, dtype)
        self.places = Parameter((0.02 * random.standard_normal((sizes.length, sizes.width))).astype(dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        n, index = (self.comm.Get_size(), self.comm.Get_rank()) if self.comm is not None else (1, 0)
        each = tokens.shape[1] // n
        mine = slice(index * each, (index + 1) * each) if n > 1 else slice(tokens.shape[1])
        positions = np.arange(tokens.shape[1]) if self.positions is None else self.positions
        return self.words(tokens[:, mine]) + embedding(self.places, positions[mine])  # a copy: a slice would keep the whole array


class Head(Module):
    """Logits from activations: a LayerNorm, and a column per word, of which a rank may hold a part; parameters as for `Block`."""

    def __init__(
        self, sizes: Sizes, random: np.random.Generator, comm: object = None, enter: Callable = no_communication, dtype=np.float32
    ):
        n, index = (comm.Get_size(), comm.Get_rank()) if comm is not None else (1, 0)
        if sizes.vocabulary % n:
            raise ValueError(f"Head: {n} ranks must divide the {sizes.vocabulary} words of the vocabulary.")
        self.comm, self.enter = comm, enter
        self.norm = LayerNorm(sizes.width, dtype=dtype)
        whole = random.standard_normal((sizes.width, sizes.vocabulary)) / np.sqrt(sizes.width)
        self.words = ParallelLinear(whole.astype(dtype), 1, n, index)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(self.enter(self.norm(x), self.comm))


def layers(sizes: Sizes, ranks: int = 1, rank: int = 0, *, seed: int = 0, dtype=np.float32) -> list[Module]:
    """Build the layers of one rank of a pipeline, with the first blocks on the first rank; with one rank, the whole model.

    Parameters
    ----------
    sizes : Sizes
    ranks, rank : int
        Number of pipeline ranks, and this one's number.
    seed : int
        Seed of all weights; the same on all ranks.
    dtype : data type

    Returns
    -------
    list of Module
        On the first rank an `Embed`, its `Block` objects, and on the last rank a `Head`.

    Raises
    ------
    ValueError
        The number of ranks does not divide the number of blocks.
    """
    if sizes.depth % ranks:
        raise ValueError(f"a pipeline of {ranks} ranks must divide the model's {sizes.depth} blocks; depth is {sizes.depth}.")
    own = range(rank * sizes.depth // ranks, (rank + 1) * sizes.depth // ranks)
    found: list[Module] = [Embed(sizes, np.random.default_rng([seed, 0]), dtype)] if rank == 0 else []
    found += [Block(sizes.width, sizes.heads, np.random.default_rng([seed, 1 + i]), dtype=dtype) for i in own]
    if rank == ranks - 1:
        found.append(Head(sizes, np.random.default_rng([seed, 1 + sizes.depth]), dtype=dtype))
    return found


def loss_of(logits: Tensor, labels: np.ndarray) -> Tensor:
    """Mean cross-entropy over all tokens; logits ``(batch, positions, vocabulary)``, labels int ``(batch, positions)``."""
    return cross_entropy(logits.reshape(-1, logits.shape[-1]), np.reshape(labels, -1))
