"""Agreements of part 37 in which some messages are late, so that each rank hears whom it must.

With ranks that are silent or cut off by the clock, who hears whom in which round is a matter of
chance: here, it is not. The ranks are virtual.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FIRST_ROUND = 2
SPLIT_ROUNDS = 10
FEW_VOTES = "a decision after too few equal votes, or a rank that does not take over the most frequent one"
Late = list[tuple[int, int, int]]


class LateCase(NamedTuple):
    """An agreement on virtual ranks.

    Attributes
    ----------
    case : str
    no_answer, differ : str
        The usual causes of a rank without an answer, and of two different ones.
    proposals : list of tuple
        By rank.
    late : Late
        Messages that come after the agreement: number of the round, sender and receiver.
    """

    case: str
    no_answer: str
    differ: str
    proposals: list[tuple]
    late: Late


def late_cases(random: np.random.Generator, smaller: tuple, larger: tuple) -> list[LateCase]:
    """Draw one case of each kind, with these two proposals."""
    return [
        _three_of_five(random, smaller, larger),
        _long_split(random, smaller, larger),
        _same_vote_undecided(random, smaller, larger),
    ]


def _three_of_five(random: np.random.Generator, smaller: tuple, larger: tuple) -> LateCase:
    """Have one of five ranks hear three equal votes among four.

    All others hear two of each, and take over the smaller proposal.
    """
    one, *others = random.permutation(5).tolist()
    large = {one, *others[:2]}
    late = [(FIRST_ROUND, one, other) for other in others]
    late.append((FIRST_ROUND, others[-1], one))
    return LateCase(
        f"5 ranks, rank {one} hears its own proposal three times among four",
        "more ranks than enough: more than 2n/3 are needed, with any n",
        "a decision by more than 2/3, or most, of those heard; it needs more than 2n/3 of all n",
        [larger if r in large else smaller for r in range(5)],
        late,
    )


def _long_split(random: np.random.Generator, smaller: tuple, larger: tuple) -> LateCase:
    """Have two pairs hear most votes for what they propose themselves, in many rounds.

    After these, all but one hear the same three ranks.
    """
    a, b, c, d = random.permutation(4).tolist()
    together = FIRST_ROUND + SPLIT_ROUNDS
    late = []
    for number in range(FIRST_ROUND, together):
        for x, y in ((a, d), (b, c)):
            late += [(number, x, y), (number, y, x)]
    late += [(together, d, other) for other in (a, b, c)]
    return LateCase(
        f"two proposals that are equally frequent for {SPLIT_ROUNDS} rounds",
        "a loop that ends after some rounds: there may be any number of them",
        "an answer without a decision, after some rounds: there may be any number of them",
        [larger if r in (a, b) else smaller for r in range(4)],
        late,
    )


def _same_vote_undecided(random: np.random.Generator, smaller: tuple, larger: tuple) -> LateCase:
    """Have two of four ranks decide, while one that sends the same vote hears another one, too."""
    a, b, c, d = random.permutation(4).tolist()
    case = f"ranks {sorted((a, b))} decide in the first round, rank {c} with the same vote does not"
    no_answer = "a decision that is not sent to all: a rank that has sent the same vote may have heard others, and is not decided yet"
    late = [(FIRST_ROUND, *link) for link in ((d, a), (d, b), (b, c))]
    proposals = [smaller if r == d else larger for r in range(4)]
    return LateCase(case, no_answer, FEW_VOTES, proposals, late)
