"""A whole GPT in plain NumPy, in float64, on all of a text at once: what prefill and decode must agree with."""

from __future__ import annotations

import math

import numpy as np

from course_lib.gpt.model import Sizes
from course_lib.gpt.serving.model import Weights, draw_weights


def random_weights(random: np.random.Generator, sizes: Sizes, dtype: type) -> Weights:
    """Draw all arrays of a model, also the norms, from a generator that no rank knows."""
    found = {}
    for name, array in draw_weights(sizes).items():
        spread = 0.3 if "norm" in name else 0.5 if name.startswith("0.") else 1.5 / math.sqrt(array.shape[0])
        found[name] = ((".norm" in name and "weight" in name) + spread * random.standard_normal(array.shape)).astype(dtype)
    return found


def full_forward(weights: Weights, sizes: Sizes, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits ``(tokens, vocabulary)``, and keys and values ``(layers, 2, tokens, heads, size)`` of all positions of a text."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    count, size = len(tokens), sizes.width // sizes.heads
    kept = np.empty((sizes.depth, 2, count, sizes.heads, size))
    x = w["0.words.weight"][tokens] + w["0.places"][:count]
    for i in range(1, sizes.depth + 1):
        q, k, v = (_norm(x, w, f"{i}.norm1") @ w[f"{i}.qkv.weight"]).reshape(count, sizes.heads, 3, size).transpose(2, 0, 1, 3)
        kept[i - 1] = k, v
        scores = np.einsum("qhs,khs->hqk", q, k) / math.sqrt(size) + np.triu(np.full((count, count), -np.inf), 1)
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        chances /= chances.sum(axis=-1, keepdims=True)
        x = x + np.einsum("hqk,khs->qhs", chances, v).reshape(count, -1) @ w[f"{i}.out.weight"]
        up = _norm(x, w, f"{i}.norm2") @ w[f"{i}.up.weight"]
        gelu = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x = x + gelu @ w[f"{i}.down.weight"]
    last = sizes.depth + 1
    return _norm(x, w, f"{last}.norm") @ w[f"{last}.words.weight"], kept


def _norm(x: np.ndarray, w: Weights, name: str) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]
