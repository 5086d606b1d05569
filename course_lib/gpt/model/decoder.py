"""A small GPT (Radford et al., 2019, "Language models are unsupervised multitask learners", section 2.3), as a list of layers.

Each layer draws its weights by itself, so a rank of a pipeline builds those that it has and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from course_lib.autograd import Embedding, LayerNorm, Module, Parameter, Tensor
from course_lib.autograd.operations import cross_entropy
from course_lib.gpt.model.block import Block, ParallelLinear, no_communication


@dataclass(frozen=True)
class Sizes:
    """What a GPT is made of.

    Parameters
    ----------
    vocabulary : int
        Different tokens.
    width, heads : int
        Of a block.
    depth : int
        Blocks.
    length : int
        The most positions of a text.
    """

    vocabulary: int
    width: int
    heads: int
    depth: int
    length: int


class Embed(Module):
    """Tokens to vectors: a row for the token, and one for its position.

    Parameters
    ----------
    sizes : Sizes
    random : numpy.random.Generator
    dtype : data type
    comm : Communicator, optional
        Ranks that share the positions (sequence parallel): given all tokens, each makes the vectors of its own.
    """

    def __init__(self, sizes: Sizes, random: np.random.Generator, dtype=np.float32, comm: object = None):
        self.comm = comm
        self.words = Embedding(sizes.vocabulary, sizes.width, random, dtype)
        self.places = Parameter((0.02 * random.standard_normal((sizes.length, sizes.width))).astype(dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        n, index = (self.comm.Get_size(), self.comm.Get_rank()) if self.comm is not None else (1, 0)
        each = tokens.shape[1] // n
        mine = slice(index * each, (index + 1) * each) if n > 1 else slice(tokens.shape[1])
        return self.words(tokens[:, mine]) + self.places[mine]


class Head(Module):
    """Vectors to logits: a LayerNorm, and a column for each word, of which a rank may have a part; parameters as for `Block`."""

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
    """The layers of one of the ranks of a pipeline, the first blocks on the first; alone, the whole model.

    Parameters
    ----------
    sizes : Sizes
    ranks, rank : int
        How many share the blocks, and which of them this is.
    seed : int
        Of all weights; the same on all ranks.
    dtype : data type

    Returns
    -------
    list of Module
        On the first rank an `Embed`, its `Block` objects, and on the last rank a `Head`.

    Raises
    ------
    ValueError
        The ranks do not divide the blocks.
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
    """The mean cross-entropy over all tokens; logits ``(batch, positions, vocabulary)``, labels int ``(batch, positions)``."""
    return cross_entropy(logits.reshape(-1, logits.shape[-1]), np.reshape(labels, -1))
