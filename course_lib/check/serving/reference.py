"""A GPT in plain NumPy, in float64: whole, which prefill and decode must agree with; and split over ranks, with known mistakes."""

from __future__ import annotations

import math

import numpy as np

from course_lib.gpt.model import Sizes
from course_lib.gpt.serving.model import Weights, draw_weights, part


def random_weights(random: np.random.Generator, sizes: Sizes, dtype: type) -> Weights:
    """Draw all arrays of a model, also the norms, from a generator that no rank knows."""
    found = {}
    for name, array in draw_weights(sizes).items():
        spread = 0.3 if "norm" in name else 0.5 if name.startswith("0.") else 1.5 / math.sqrt(array.shape[0])
        found[name] = ((".norm" in name and "weight" in name) + spread * random.standard_normal(array.shape)).astype(dtype)
    return found


def full_forward(
    weights: Weights,
    sizes: Sizes,
    tokens: list[int],
    earlier: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Run a text through the whole model.

    Parameters
    ----------
    earlier : numpy.ndarray, optional
        Keys and values ``(layers, 2, tokens - 1, heads, size)`` of all tokens but the last, which
        then runs alone.

    Returns
    -------
    logits : numpy.ndarray
        ``(tokens, vocabulary)``, or ``(1, vocabulary)`` of the last token.
    kept : numpy.ndarray
        Keys and values ``(layers, 2, tokens, heads, size)``.
    """
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    count, size = len(tokens), sizes.width // sizes.heads
    first = 0 if earlier is None else count - 1
    kept = np.empty((sizes.depth, 2, count, sizes.heads, size))
    if earlier is not None:
        kept[:, :, :first] = earlier
    mask = np.triu(np.full((count - first, count), -np.inf), 1 + first)
    x = w["0.words.weight"][tokens[first:]] + w["0.places"][first:count]  # (queries, width)
    for i in range(1, sizes.depth + 1):
        products = _norm(x, w, f"{i}.norm1") @ w[f"{i}.qkv.weight"]
        q, *new = products.reshape(count - first, sizes.heads, 3, size).transpose(2, 0, 1, 3)
        kept[i - 1, :, first:] = new
        k, v = kept[i - 1]
        scores = np.einsum("qhs,khs->hqk", q, k) / math.sqrt(size) + mask
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        chances /= chances.sum(axis=-1, keepdims=True)
        seen = np.einsum("hqk,khs->qhs", chances, v).reshape(count - first, -1)
        x = x + seen @ w[f"{i}.out.weight"]
        x = x + _mlp(x, w, i)
    last = sizes.depth + 1
    return _norm(x, w, f"{last}.norm") @ w[f"{last}.words.weight"], kept


def rank_logits(
    weights: Weights,
    sizes: Sizes,
    tokens: list[int],
    n: int,
    *,
    kept: np.ndarray | None = None,
    late: np.ndarray | None = None,
    shift: int = 0,
    sees: int = 0,
    swapped: bool = False,
    sums: tuple[bool, bool] = (True, True),
    beside: bool = False,
    share: float = 1.0,
) -> np.ndarray:
    """Each of n ranks' logits ``(n, queries, vocabulary / n)`` as a mistake makes them.

    Parameters
    ----------
    kept : numpy.ndarray, optional
        Keys and values of all tokens, as `full_forward` returns them: then only the last token runs through the model.
    late : numpy.ndarray, optional
        Keys and values ``(layers, 2, heads, size)`` in the place of the last token's own.
    shift : int
        Added to the positions of the tokens that run.
    sees : int
        How many later tokens a token sees; -1: not even itself.
    swapped : bool
        Whether keys and values are mixed up.
    sums : (bool, bool)
        Whether attention's and the MLP's results are added up over the ranks.
    beside : bool
        Whether the MLP gets what attention got.
    share : float
        How many times x itself is in a sum.
    """
    parts = [{name: a.astype(np.float64) for name, a in part(weights, n, r).items()} for r in range(n)]
    count, size, heads = len(tokens), sizes.width // sizes.heads, sizes.heads // n
    first = 0 if kept is None else count - 1
    w = {name: a.astype(np.float64) for name, a in weights.items()}
    places = np.clip(np.arange(first, count) + shift, 0, sizes.length - 1)
    x = [w["0.words.weight"][tokens[first:]] + w["0.places"][places] for _ in range(n)]
    mask = np.where(np.arange(count) > np.arange(first, count)[:, None] + sees, -np.inf, 0)
    for i in range(1, sizes.depth + 1):
        added: list[list] = [[], []]
        for r, own in enumerate(parts):
            shaped = (_norm(x[r], own, f"{i}.norm1") @ own[f"{i}.qkv.weight"]).reshape(count - first, heads, 3, size)
            q, *pair = shaped.transpose(2, 0, 1, 3)
            if kept is not None:
                mine = slice(r * heads, (r + 1) * heads)
                pair = [
                    np.concatenate([kept[i - 1, j, :-1, mine], pair[j] if late is None else late[i - 1, j, None, mine]]) for j in (0, 1)
                ]
            k, v = reversed(pair) if swapped else pair
            chances = np.exp(np.einsum("qhs,khs->hqk", q, k) / math.sqrt(size) + mask)
            seen = np.einsum("hqk,khs->qhs", chances / np.maximum(chances.sum(axis=-1, keepdims=True), 1e-300), v)
            added[0].append(seen.reshape(count - first, -1) @ own[f"{i}.out.weight"])
        before = x
        x = _add(x, added[0], sums[0], share)
        for r, own in enumerate(parts):
            added[1].append(_mlp((before if beside else x)[r], own, i))
        x = _add(x, added[1], sums[1], share)
    last = sizes.depth + 1
    return np.stack([_norm(x[r], own, f"{last}.norm") @ own[f"{last}.words.weight"] for r, own in enumerate(parts)])


def _add(x: list[np.ndarray], own: list[np.ndarray], summed: bool, share: float) -> list[np.ndarray]:
    return [share * before + (sum(own) if summed else mine) for before, mine in zip(x, own, strict=True)]


def _mlp(x: np.ndarray, w: Weights, layer: int) -> np.ndarray:
    up = _norm(x, w, f"{layer}.norm2") @ w[f"{layer}.up.weight"]
    gelu = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
    return gelu @ w[f"{layer}.down.weight"]


def _norm(x: np.ndarray, w: Weights, name: str) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]
