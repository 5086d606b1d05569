"""Pairs of arrays that are the same sums up to rounding, and pairs that are not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from course_lib.check.silent_bug import contract
from course_lib.check.silent_bug.model import weighted_sum
from course_lib.gpt.silent_bugs import epsilon, rounded

TOO_FAR = 1.3  # times what rounding explains, clearly


class Pair(NamedTuple):
    """Two arrays, and whether rounding explains how they differ.

    Attributes
    ----------
    name : str
    a, b : numpy.ndarray
    dtype : str
        Format of the terms and of each partial sum.
    terms : int
        Number of terms in each sum.
    close : bool
    """

    name: str
    a: np.ndarray
    b: np.ndarray
    dtype: str
    terms: int
    close: bool


def draw_pairs(random: np.random.Generator) -> list[Pair]:
    """Draw pairs of all kinds."""
    pairs = _single_pairs(random)
    for dtype, terms in (
        ("float64", 200),
        ("float64", 6),
        ("float32", 300),
        ("float32", 5),
        ("float16", 12),
        ("bfloat16", 8),
    ):
        pairs += _pairs(random, dtype, terms)
    for terms in (2_000, 40_000):  # whose errors add up to more than a few units of the last place
        a, b = _many_terms(random, terms)
        too_large = _too_large(b, "float32", terms)
        pairs.append(Pair("many terms", a, b, "float32", terms, True))
        pairs.append(Pair("many terms, a factor", too_large, b, "float32", terms, False))
    return pairs


def _single_pairs(random: np.random.Generator) -> list[Pair]:
    """Pairs whose values, shapes or dtypes are special."""
    zero, one = np.zeros(5), np.array(random.uniform(1, 2))
    below = -random.uniform(1, 2, 5)
    big = random.standard_normal((300, 300))
    changed = big.copy()
    changed[tuple(random.integers(300, size=2))] += 2.0
    single = random.standard_normal((4, 3)).astype(np.float32)
    none, tiny = np.zeros((0, 3)), np.array([5e-324, -1e-310])
    infinite, other_infinite = np.array([np.inf, 1.0]), np.array([np.inf, 2.0])
    both = np.array([-np.inf, 1.0])
    ones = np.ones((3, 4))
    return [
        Pair("nothing but zeros", zero, zero.copy(), "float64", 10, True),
        Pair("zeros with a sign", zero, -zero, "float64", 10, True),
        Pair("subnormal numbers", tiny, tiny.copy(), "float64", 10, True),
        Pair("no numbers", none, none.copy(), "float64", 10, True),
        Pair("no numbers, other shapes", none, none.T, "float64", 10, False),
        Pair("one number", one, np.nextafter(one, 3), "float64", 10, True),
        Pair("one number", one, one * 1.5, "float64", 10, False),
        Pair("a copy", big[:30], big[:30].copy(), "float64", 1, True),
        Pair("a copy in float64", single, single.astype(np.float64), "float32", 4, True),
        Pair("zeros", zero + 1e-9, zero, "float32", 10, False),
        Pair(
            "one element of many",
            rounded(changed, "float16"),
            rounded(big, "float16"),
            "float16",
            4,
            False,
        ),
        Pair("other shapes", ones, ones.T.copy(), "float64", 4, False),
        Pair("a shape that broadcasts", ones[:1], ones, "float64", 4, False),
        Pair("negative values", below, np.nextafter(below, 0), "float64", 10, True),
        Pair("infinite", infinite, other_infinite, "float64", 4, False),
        Pair("infinite in both", both, both.copy(), "float64", 4, False),
        Pair("one infinite", infinite, np.ones(2), "float32", 4, False),
        Pair("the other infinite", np.ones(2), infinite[::-1].copy(), "float32", 4, False),
    ]


def _many_terms(random: np.random.Generator, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw sums one term after the other, and exact ones.

    Some differ by 0.35 to 0.5 epsilons times the root of `terms`, none by more.
    The first term is so large that all additions err by up to half an epsilon of the result.
    """
    unit = np.float32(terms**0.5 * epsilon("float32"))
    while True:
        x = random.uniform(-1e-4, 1e-4, (terms, 40))
        x[0] = 1.05 * random.choice([-1, 1], 40)
        x = rounded(x, "float32")
        a = np.cumsum(x, axis=0)[-1]
        b = np.asarray(rounded(x.sum(axis=0, dtype=np.float64), "float32"))
        errors = np.abs(a - b) / unit
        kept = errors < 0.5
        if errors[kept].max(initial=0) > 0.35:
            return a[kept], b[kept]


def _too_large(right: np.ndarray, dtype: str, terms: int) -> np.ndarray:
    """Multiply by a factor that rounding does not explain; by a bit less it would."""
    epsilons = TOO_FAR * max(contract.ROUNDING.number * terms**0.5, terms)
    share = epsilons * epsilon(dtype)  # of the larger one of two values
    return np.asarray(rounded(right / (1 - share), dtype))


def _pairs(random: np.random.Generator, dtype: str, terms: int) -> list[Pair]:
    """Sums of random terms in two orders, and such with a bug; some of their values nearly cancel."""
    pairs, ones = [], np.ones(terms)
    for scale in (1e-6, 1.0, 1e4) if dtype != "float16" else (1e-2, 1.0, 1e2):
        x = random.standard_normal((terms, 30)) * scale
        almost = 1 + 1e-3 * random.standard_normal(3)
        x[-1, :3] = -x[:-1, :3].sum(axis=0) * almost  # three sums are nearly 0
        x = rounded(x, dtype)
        a = weighted_sum(x, ones, dtype)
        exact = x.sum(axis=0, dtype=np.float64)
        half = x[: terms // 2].sum(axis=0, dtype=np.float64)
        with_nan = a.astype(np.float64)
        with_nan[int(random.integers(30))] = np.nan
        others = {
            "another order": weighted_sum(x, ones, dtype, random.permutation(terms)),
            "exact, then rounded": exact,
            "a factor": a * 1.5,
            "a small factor": _too_large(a, dtype, terms),
            "the other sign": -a,
            "another order of the values": np.roll(a, 1),
            "terms are missing": half,
            "not a number": with_nan,
        }
        if dtype in ("float32", "float64"):
            others["one term is missing"] = x[1:].sum(axis=0, dtype=np.float64)
        for name, b in others.items():
            close = name in ("another order", "exact, then rounded")
            pairs.append(Pair(name, a, np.asarray(rounded(b, dtype)), dtype, terms, close))
        nan = np.asarray(rounded(with_nan, dtype))
        pairs.append(Pair("not a number in both", nan, nan.copy(), dtype, terms, False))
    return pairs
