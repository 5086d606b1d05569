"""Kinds of cases that every check draws from, and a record of those that were drawn.

A wrong answer often passes because a check calls a function once, on fresh and friendly arrays. So
each exercise is checked with every kind of case in `KINDS`, unless its room says in ``NOT_DRAWN``
(module ``contract``) why a kind does not apply; a test compares that with what was drawn.
"""

from __future__ import annotations

from collections import defaultdict

KINDS = {
    "dtypes": "more than one dtype, where the exercise allows it",
    "special values": "NaN, infinities, -0.0, subnormal numbers, and what a narrower dtype cannot hold",
    "layouts": "arrays that are read-only, strided, reversed or in Fortran order",
    "sizes": "one element, one column or none, and sizes that no number of ranks divides",
    "group order": "groups whose ranks are in any order",
    "group sizes": "groups of one, two, three and four ranks",
    "many ranks": "up to 17 ranks",
    "repetition": "a second call with other values and with other sizes",
    "same ranks twice": "two communicators with the same ranks, used in turn",
    "arguments": "arguments compared before and after a call",
    "results": "results compared again after later calls, and after the caller has reused its arrays",
    "calls": "every call of the communicator counted, barriers too, and none on other ranks",
}

drawn: defaultdict[str, set[str]] = defaultdict(set)  # kinds by exercise, in this process


def record(exercise: str, *kinds: str) -> None:
    """Record that an exercise has been checked with these kinds of cases.

    Raises
    ------
    KeyError
        There is no such kind.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise KeyError(f"there is no kind of cases {kind!r}; there are {', '.join(KINDS)}")
        drawn[exercise].add(kind)
