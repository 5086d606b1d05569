"""Pairs of arrays that are the same sums up to rounding, and pairs that are not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from course_lib.check.silent_bug.model import weighted_sum
from course_lib.gpt.silent_bugs import epsilon, rounded


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
    found = []
    for dtype, terms in (("float64", 200), ("float64", 6), ("float32", 300), ("float32", 5), ("float16", 12), ("bfloat16", 8)):
        found += _pairs(random, dtype, terms)
    for terms in (2_000, 40_000):  # so many terms that the errors add up to more than a few units of the last place
        a, b = _many_terms(random, terms)
        found.append(Pair("many terms", a, b, "float32", terms, True))
        found.append(Pair("many terms, a factor", b * np.float32(1.2), b, "float32", terms, False))
    zero, below = np.zeros(5), -random.uniform(1, 2, 5)
    big = random.standard_normal((300, 300))
    other = big.copy()
    other[tuple(random.integers(300, size=2))] += 2.0
    found += [
        Pair("nothing but zeros", zero, zero.copy(), "float64", 10, True),
        Pair("no numbers", np.zeros((0, 3)), np.zeros((0, 3)), "float64", 10, True),
        Pair("a copy", big, big.copy(), "float64", 1, True),
        Pair("zeros", zero + 1e-9, zero, "float32", 10, False),
        Pair("one element of many", rounded(other, "float16"), rounded(big, "float16"), "float16", 4, False),
        Pair("other shapes", np.ones((3, 4)), np.ones((4, 3)), "float64", 4, False),
        Pair("a shape that broadcasts", np.ones((1, 4)), np.ones((3, 4)), "float64", 4, False),
        Pair("negative values", below, np.nextafter(below, 0), "float64", 10, True),
        Pair("infinite", np.array([np.inf, 1.0]), np.array([np.inf, 2.0]), "float64", 4, False),
        Pair("infinite in both", np.array([-np.inf, 1.0]), np.array([-np.inf, 1.0]), "float64", 4, False),
        Pair("one infinite", np.array([np.inf, 1.0]), np.array([1.0, 1.0]), "float32", 4, False),
        Pair("the other infinite", np.array([1.0, 1.0]), np.array([1.0, np.inf]), "float32", 4, False),
    ]
    return found


def _many_terms(random: np.random.Generator, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw sums one term after the other, and exact ones; the largest of them differ by 0.2 to 0.5 epsilons times the root of `terms`.

    The first term is so large that all additions err by up to half an epsilon of the result.
    """
    x = random.uniform(-1e-4, 1e-4, (terms, 40))
    x[0] = 1.05 * random.choice([-1, 1], 40)
    x = rounded(x, "float32")
    a, b = np.cumsum(x, axis=0)[-1], np.asarray(rounded(x.sum(axis=0, dtype=np.float64), "float32"))
    errors = np.abs(a - b) / np.float32(terms**0.5 * epsilon("float32"))
    return a[errors < 0.5], b[errors < 0.5]


def _pairs(random: np.random.Generator, dtype: str, terms: int) -> list[Pair]:
    """Sums of random terms in two orders, and such with a bug; small and large ones, some of whose values nearly cancel."""
    found, ones = [], np.ones(terms)
    for scale in (1e-6, 1.0, 1e4) if dtype != "float16" else (1e-2, 1.0, 1e2):
        x = random.standard_normal((terms, 30)) * scale
        x[-1, :3] = -x[:-1, :3].sum(axis=0) * (1 + 1e-3 * random.standard_normal(3))  # three sums are nearly 0
        x = rounded(x, dtype)
        a = weighted_sum(x, ones, dtype)

        def add(name: str, b: np.ndarray, close: bool, a: np.ndarray = a) -> None:
            found.append(Pair(name, a, np.asarray(rounded(b, dtype)), dtype, terms, close))

        add("another order", weighted_sum(x, ones, dtype, random.permutation(terms)), True)
        add("exact, then rounded", x.sum(axis=0, dtype=np.float64), True)
        add("a factor", a * 1.5, False)
        add("the other sign", -a, False)
        add("another order of the values", np.roll(a, 1), False)
        add("terms are missing", x[: terms // 2].sum(axis=0, dtype=np.float64), False)
        with_nan = a.astype(np.float64)
        with_nan[int(random.integers(30))] = np.nan
        add("not a number", with_nan, False)
        add("not a number in both", with_nan, False, a=np.asarray(rounded(with_nan, dtype)))
        if dtype in ("float32", "float64"):
            add("one term is missing", x[1:].sum(axis=0, dtype=np.float64), False)
        # Of few terms: too much for a bound that does not depend on their number, and in float16 for bfloat16's epsilon.
        factor = {"float64": 1 + 1e-8, "float32": 1.01, "float16": 1.06, "bfloat16": 1.3}[dtype]
        add("a small factor", a * factor, False)
    return found
