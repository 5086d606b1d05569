"""Quick questions about products of sharded matrices (part 11); ungraded. The right answer is measured, not stored."""

from __future__ import annotations

import numpy as np

from course_lib import placement
from course_lib.placement import Kind, partial, replicated, sharded

RANKS, SIDE = 4, 8
NAMES = {"replicated": replicated, "sharded by rows": sharded(0), "sharded by columns": sharded(1), "partial": partial}
GATHER = "gather first"
MEANINGS = {
    "replicated": "each rank computes all of C",
    "sharded by rows": "each rank computes some rows of C, and they are complete",
    "sharded by columns": "each rank computes some columns of C, and they are complete",
    "partial": "each rank computes one term of a sum, as large as C",
    GATHER: "the ranks cannot compute C from what they have, and one matrix must be gathered first",
}


def own_products(a: str, b: str, answer: str) -> None:
    """Say whether an answer is right: what are the ranks' own products of A and B?

    Parameters
    ----------
    a, b : str
        Placements of A and B: a name of `NAMES` except "partial".
    answer : str
        A name of `NAMES`, or "gather first".
    """
    print(f"A {a}, B {b}: {judge(a, b, answer)}")


def judge(a: str, b: str, answer: str) -> str:
    """Return a sentence about an answer to `own_products`."""
    words = " ".join(str(answer).lower().replace("_", " ").split())
    if words in ("", "?"):
        return "write your answer in place of the question mark."
    if words not in MEANINGS:
        return f"{answer!r} is none of the answers: {', '.join(MEANINGS)}."
    right, shapes = measure(NAMES[a], NAMES[b])
    if words == right:
        return f"right. {shapes}: {MEANINGS[right]}."
    return f"not so. That would mean: {MEANINGS[words]}. {shapes}; C is {SIDE} x {SIDE}."


def measure(a: Kind, b: Kind) -> tuple[str, str]:
    """Return what the ranks' own products are, found by multiplying, and the shapes that rank 1 multiplies, as a sentence."""
    random = np.random.default_rng(0)
    A, B = random.standard_normal((2, SIDE, SIDE))
    parts = [(_part(A, a, r), _part(B, b, r)) for r in range(RANKS)]
    (m, k), (other, n) = parts[1][0].shape, parts[1][1].shape
    if k != other:
        return GATHER, f"Rank 1 has {m} x {k} of A and {other} x {n} of B, which it cannot multiply"
    kinds = placement.kinds_of([left @ right for left, right in parts], A @ B)
    found = next((name for name, kind in NAMES.items() if kind in kinds), GATHER)
    return found, f"Rank 1 multiplies {m} x {k} by {k} x {n} and gets {m} x {n}"


def _part(matrix: np.ndarray, kind: Kind, rank: int) -> np.ndarray:
    return matrix if kind == replicated else np.split(matrix, RANKS, axis=kind.dim)[rank]
