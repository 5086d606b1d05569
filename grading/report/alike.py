"""Pairs of answers that are alike beyond what the exercise makes alike: where a person may want to look, and no verdict."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from grading.authoring import answers
from grading.authoring.build import kind_of
from grading.report import tokens
from grading.report.hand_ins import Course
from grading.report.tokens import Run

FEWEST = 20  # runs of tokens, each counted by how few have it, that two answers share
SHARE = 0.6  # of what the shorter one has of its own
COMMON, MANY = 0.25, 3  # what more than this part of the class has, and more than so many students, is nobody's own
_MARKS = re.compile(r"### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)
STUB = "raise NotImplementedError"


@dataclass(frozen=True)
class Pair:
    """Two answers to an exercise that share much of what they have of their own.

    Attributes
    ----------
    share : float
        How much of what the shorter one has of its own is in the other, too; from 0 to 1.
    runs : float
        How many runs of tokens that is; one that only these two have counts as 1, one that others have, too, as less.
    """

    exercise: str
    students: tuple[str, str]
    share: float
    runs: float


@dataclass
class Likeness:
    """What was found in an exercise.

    Attributes
    ----------
    pairs : list of Pair
        The most alike first.
    compared, short : int
        Answers that have enough of their own to be compared, and those that have not.
    groups : list of (Pair, list of str)
        Students whom pairs join, also over others, each group with the first of its pairs.
    """

    exercise: str
    pairs: list[Pair] = field(default_factory=list)
    compared: int = 0
    short: int = 0
    groups: list[tuple[Pair, list[str]]] = field(default_factory=list)


def find(course: Course, given: set[Run]) -> list[Likeness]:
    """What is alike in each exercise of a part, but for what is `known`."""
    exercises = dict.fromkeys(exercise for hand_in in course.graded.values() for exercise in hand_in.answers)
    return [
        compare(exercise, {student: h.answers[exercise] for student, h in course.graded.items() if exercise in h.answers}, given)
        for exercise in exercises
    ]


def known(course: Course) -> set[Run]:
    """What nobody needs to copy from a neighbour: the released text, the solution, and variants that are right."""
    texts = [answer.source for answer in answers.read(course.part) if not answer.loses]
    for cell in course.source.cells:
        if kind_of(cell) in ("exercise", "example", "given"):
            texts += [cell.source, _MARKS.sub(STUB, cell.source)]
    return {run for text in texts for run in tokens.runs(text)}


def compare(exercise: str, sources: dict[str, str], given: set[Run]) -> Likeness:
    """Find the pairs among answers to one exercise.

    Parameters
    ----------
    sources : dict of str to str
        The answers, by student.
    given : set of Run
        What does not count (see `known`).
    """
    own = {student: tokens.runs(source).keys() - given for student, source in sources.items()}
    having = Counter(run for runs in own.values() for run in runs)
    most = max(MANY, COMMON * len(own))
    columns = {run: i for i, run in enumerate(run for run, n in having.items() if n <= most)}
    weights = np.array([weight(having[run], len(own)) for run in columns])
    students = list(own)
    places = [sorted(columns[run] for run in own[student] if run in columns) for student in students]
    found = Likeness(exercise)
    if not columns:
        found.short = len(students)
        return found
    starts = np.cumsum([0, *map(len, places)])
    table = sparse.csr_matrix((np.ones(starts[-1]), np.concatenate(places).astype(int), starts), (len(students), len(columns)))
    whole = table @ weights
    found.compared = int(np.count_nonzero(whole >= FEWEST))
    found.short = len(students) - found.compared
    shared = sparse.triu(table.multiply(weights) @ table.T, k=1).tocoo()  # only pairs that have something in common are in it
    smaller = np.minimum(whole[shared.row], whole[shared.col])
    alike = (shared.data >= FEWEST) & (shared.data >= SHARE * smaller)
    for i, j, runs, least in zip(*(a[alike].tolist() for a in (shared.row, shared.col, shared.data, smaller)), strict=True):
        found.pairs.append(Pair(exercise, (students[i], students[j]), min(1.0, runs / least), runs))
    found.pairs.sort(key=lambda pair: (-pair.share * pair.runs, pair.students))
    found.groups = groups(found.pairs)
    return found


def shared_lines(a: str, b: str, given: set[Run]) -> tuple[set[int], set[int]]:
    """The lines of two answers where the runs stand that they share."""
    here, there = tokens.runs(a), tokens.runs(b)
    both = (here.keys() & there.keys()) - given
    return {line for run in both for line in here[run]}, {line for run in both for line in there[run]}


def weight(having: int, students: int) -> float:
    """How much a run says that so many students have: 1 for two of them, less for more.

    >>> [round(weight(n, 1000), 2) for n in (2, 10, 100)]
    [1.0, 0.74, 0.37]
    """
    return min(1.0, math.log((students + 1) / having) / math.log((students + 1) / 2))


def groups(pairs: list[Pair]) -> list[tuple[Pair, list[str]]]:
    """The groups of `Likeness`, from its pairs."""
    leader: dict[str, str] = {}

    def first(student: str) -> str:
        while leader.setdefault(student, student) != student:
            student = leader[student]
        return student

    for pair in pairs:
        a, b = map(first, pair.students)
        leader[b] = a
    members: dict[str, list[str]] = {}
    for student in leader:
        members.setdefault(first(student), []).append(student)
    shown: dict[str, tuple[Pair, list[str]]] = {}
    for pair in pairs:
        shown.setdefault(first(pair.students[0]), (pair, sorted(members[first(pair.students[0])])))
    return list(shown.values())
