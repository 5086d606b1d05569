"""One tensor parallel rank's part of a GPT, for inference: arrays instead of tensors, in steps between which the student's code stands.

embed ── qkv ── (keys and values into the cache) ── attend ── out ── (sum over ranks) ── mlp ── (sum over ranks) ── ... ── logits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from course_lib.autograd import Tensor
from course_lib.autograd.functional import gelu, layer_norm
from course_lib.gpt.model import Sizes, layers

SHARDED = {"qkv": 1, "up": 1, "out": 0, "down": 0}  # the dimension along which a block's matrix is split over the ranks

FEW_ROWS = 32
UNCOPIED_MULTIPLICATIONS = 1_000_000

Weights = dict[str, np.ndarray]


@dataclass(eq=False)
class Text:
    """A text that is being continued.

    Attributes
    ----------
    number : int
        Different for each text.
    tokens : list of int
        The prompt, and what has been generated so far.
    limit : int
        Most tokens to generate.
    prompt : int
        Length of the prompt: by default that of `tokens`.
    ended : bool
        Whether it ends here, before the limit: the client has gone, or a stop sequence was generated.
    """

    number: int
    tokens: list[int]
    limit: int
    prompt: int = -1
    ended: bool = field(default=False)

    def __post_init__(self):
        if self.prompt < 0:
            self.prompt = len(self.tokens)

    @property
    def done(self) -> bool:
        """True if there is nothing left to generate.

        >>> text = Text(0, [5, 6], limit=1)
        >>> text.done, text.tokens.append(7), text.done
        (False, None, True)
        """
        return self.ended or len(self.tokens) - self.prompt >= self.limit


def attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention of a text's last positions to all positions up to each of them.

    Parameters
    ----------
    q : numpy.ndarray
        ``(queries, heads, size)``: of the last positions.
    keys, values : numpy.ndarray
        ``(positions, heads, size)``: of all positions, in order.

    Returns
    -------
    numpy.ndarray
        ``(queries, heads, size)``.

    Raises
    ------
    ValueError
        The shapes do not fit together.
    """
    if q.ndim != 3 or keys.shape != values.shape or keys.shape[1:] != q.shape[1:] or len(q) > len(keys):
        said = f"{q.shape}, {keys.shape}, {values.shape}"
        raise ValueError(f"attend: q is (queries, heads, size), keys and values (positions, heads, size), no fewer; got {said}.")
    scores = (q * q.dtype.type(q.shape[2] ** -0.5)).transpose(1, 0, 2) @ keys.transpose(1, 2, 0)
    if len(q) > 1:
        scores += np.triu(np.full(scores.shape[1:], -np.inf, scores.dtype), 1 + len(keys) - len(q))
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return (scores @ values.transpose(1, 0, 2)).transpose(1, 0, 2)


def paged_attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray, slots: Sequence[np.ndarray]) -> np.ndarray:
    """Attention of the last token of several texts, each to its own slots of a cache (Kwon et al., 2023, section 4.1).

    A GPU's kernel reads the blocks where they lie. Here the texts' keys and values are gathered, and short texts padded to the longest.

    Parameters
    ----------
    q : numpy.ndarray
        ``(texts, heads, size)``: of each text's last token.
    keys, values : numpy.ndarray
        ``(slots, heads, size)``: of a layer of the cache.
    slots : sequence of numpy.ndarray
        For each text the slots of its tokens, in order; the last one is that of the token whose query this is.

    Returns
    -------
    numpy.ndarray
        ``(texts, heads, size)``.

    Raises
    ------
    ValueError
        The shapes do not fit together, or a text has no slot.
    """
    lengths = np.array([len(own) for own in slots])
    if q.ndim != 3 or keys.shape != values.shape or keys.shape[1:] != q.shape[1:] or len(q) != len(slots) or not all(lengths):
        said = f"{q.shape}, {keys.shape}, {values.shape}, and {len(slots)} texts with {lengths.tolist()} slots"
        raise ValueError(
            f"paged_attention: q is (texts, heads, size), keys and values (slots, heads, size), slots one array a text; got {said}."
        )
    present = np.arange(lengths.max()) < lengths[:, None]
    index = np.zeros(present.shape, int)
    index[present] = np.concatenate(slots)
    found_keys, found_values = keys.take(index, axis=0), values.take(index, axis=0)  # (texts, longest, heads, size)
    scores = ((q * q.dtype.type(q.shape[2] ** -0.5))[:, :, None] @ found_keys.transpose(0, 2, 3, 1))[:, :, 0]
    scores += np.where(present, 0, -np.inf).astype(scores.dtype)[:, None]
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return (scores[:, :, None] @ found_values.transpose(0, 2, 1, 3))[:, :, 0]


def multiply(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return ``x @ matrix``; for a few rows in slices of columns, which is faster.

    OpenBLAS copies both factors into an order of its own when a product takes more than a million multiplications (`SMALL_MATRIX_OPT`).
    For the rows of a step of decode, copying the matrix takes longer than multiplying with it.
    """
    rows, columns = len(x), matrix.shape[1]
    slices = -(-x.size * columns // UNCOPIED_MULTIPLICATIONS)
    if not 2 <= rows <= FEW_ROWS or slices < 2:
        return x @ matrix
    result, width = np.empty((rows, columns), x.dtype), -(-columns // slices)
    for begin in range(0, columns, width):
        np.matmul(x, matrix[:, begin : begin + width], out=result[:, begin : begin + width])
    return result


class ServingBlock:
    """A transformer block on one rank; its methods take and return ``(tokens, ...)``, tokens of any texts.

    Parameters
    ----------
    weights : dict of str to numpy.ndarray
        This rank's parts, by name.
    heads : int
        Heads of this rank.
    """

    def __init__(self, weights: Weights, heads: int):
        self.weights, self.heads = weights, heads

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return _layer_norm(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def qkv(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Queries, keys and values of this rank's heads, each ``(tokens, heads, size)``."""
        found = (multiply(self._norm("norm1", x), self.weights["qkv.weight"])).reshape(len(x), self.heads, 3, -1)
        return found[:, :, 0], found[:, :, 1], found[:, :, 2]

    def out(self, seen: np.ndarray) -> np.ndarray:
        """This rank's summand of attention, ``(tokens, width)``, from what its heads have seen, ``(tokens, heads, size)``."""
        return multiply(seen.reshape(len(seen), -1), self.weights["out.weight"])

    def mlp(self, x: np.ndarray) -> np.ndarray:
        """This rank's summand of the MLP, ``(tokens, width)``."""
        up = multiply(self._norm("norm2", x), self.weights["up.weight"])
        return multiply(gelu(Tensor(up)).data, self.weights["down.weight"])


class ServingModel:
    """One rank's part of a GPT.

    Parameters
    ----------
    sizes : Sizes
        Of the whole model.
    weights : dict of str to numpy.ndarray
        The whole model's arrays, or this rank's parts of them (`part`), by the names of `named_weights`.
    n, index : int
        Number of ranks that share the model, and this rank's place among them.

    Attributes
    ----------
    blocks : list of ServingBlock
    heads, size : int
        Heads of this rank, and numbers in a head.
    token_shape : tuple of int
        Shape of what a token keeps on this rank: ``(layers, 2, heads, size)``, keys and values.
    columns : range
        Words of the vocabulary whose logits this rank has.
    dtype : numpy.dtype
    """

    def __init__(self, sizes: Sizes, weights: Weights, n: int = 1, index: int = 0):
        if sizes.heads % n or sizes.vocabulary % n:
            raise ValueError(f"{n} ranks must divide the {sizes.heads} heads and the {sizes.vocabulary} words of the vocabulary.")
        self.sizes, self.heads, self.size = sizes, sizes.heads // n, sizes.width // sizes.heads
        self.token_shape = sizes.depth, 2, self.heads, self.size
        self.columns = range(index * sizes.vocabulary // n, (index + 1) * sizes.vocabulary // n)
        self.weights = weights if weights["1.out.weight"].shape[0] == self.heads * self.size else part(weights, n, index)
        self.dtype = self.weights["0.places"].dtype
        self.blocks = [ServingBlock(_of_layer(self.weights, i), self.heads) for i in range(1, sizes.depth + 1)]
        self._last = _of_layer(self.weights, sizes.depth + 1)

    def embed(self, tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        """Embeddings of tokens at these positions of their texts, ``(tokens, width)``."""
        return self.weights["0.words.weight"][np.asarray(tokens)] + self.weights["0.places"][np.asarray(positions)]

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Logits of this rank's words, ``(tokens, vocabulary / n)``."""
        return multiply(_layer_norm(x, self._last["norm.weight"], self._last["norm.bias"]), self._last["words.weight"])


def small_model(comm: object, seed: int = 0) -> ServingModel:
    """Make this rank's part of a small GPT with drawn weights, which all ranks of comm share."""
    sizes = Sizes(vocabulary=256, width=64, heads=4, depth=3, length=64)
    return ServingModel(sizes, draw_weights(sizes, seed), comm.Get_size(), comm.Get_rank())


def named_weights(model: list) -> Weights:
    """Arrays of a whole model's layers, by the number of the layer and the name there."""
    return {f"{i}.{name}": p.data for i, layer in enumerate(model) for name, p in layer.named_parameters()}


def draw_weights(sizes: Sizes, seed: int = 0, dtype: type = np.float32) -> Weights:
    """Draw the weights of a whole model; the same seed gives the same ones."""
    return named_weights(layers(sizes, seed=seed, dtype=dtype))


def split_dimension(name: str, depth: int) -> int | None:
    """Dimension along which an array is split over the tensor parallel ranks; None where each rank has all of it.

    >>> split_dimension("1.out.weight", 4), split_dimension("5.words.weight", 4), split_dimension("0.words.weight", 4)
    (0, 1, None)
    """
    layer, kind, *_ = name.split(".")
    return 1 if kind == "words" and int(layer) > depth else SHARDED.get(kind)


def part(weights: Weights, n: int, index: int) -> Weights:
    """One rank's parts of a whole model's arrays."""
    depth, found = max(int(name.split(".")[0]) for name in weights) - 1, {}
    for name, array in weights.items():
        dim = split_dimension(name, depth)
        found[name] = array if dim is None else np.ascontiguousarray(np.split(array, n, axis=dim)[index])
    return found


def _of_layer(weights: Weights, layer: int) -> Weights:
    return {name.partition(".")[2]: array for name, array in weights.items() if name.startswith(f"{layer}.")}


def _layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return layer_norm(Tensor(x), Tensor(scale), Tensor(shift)).data
