"""Find pairs of answers that are more similar than the exercise makes them: a reason for a person to look, not a verdict."""

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
from grading.report.class_results import ClassResults
from grading.report.tokens import Shingle
from grading.submission.assembly import STUB

MIN_SHARED_WEIGHT = 20  # shingles that two answers share, weighted by how few students have them
MIN_SHARED_FRACTION = 0.6  # of the shorter answer's own shingles
COMMON_FRACTION, COMMON_MIN_STUDENTS = 0.25, 3  # shingles of more than this share of a class, and this many students, are nobody's own
_MARKS = re.compile(r"### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)


@dataclass(frozen=True)
class SimilarPair:
    """Two answers to an exercise that share many of their own shingles.

    Attributes
    ----------
    share : float
        Fraction of the shorter answer's own shingles that the other one has, too; from 0 to 1.
    runs : float
        Number of these shingles; one that only these two have counts as 1, one that others have, too, as less.
    """

    exercise: str
    students: tuple[str, str]
    share: float
    runs: float


@dataclass
class ExerciseSimilarity:
    """Similar answers to an exercise.

    Attributes
    ----------
    pairs : list of SimilarPair
        The most similar first.
    compared, short : int
        Numbers of answers with enough shingles of their own to be compared, and of those without.
    groups : list of (SimilarPair, list of str)
        Students connected by pairs, also indirectly, each group with the first of its pairs.
    """

    exercise: str
    pairs: list[SimilarPair] = field(default_factory=list)
    compared: int = 0
    short: int = 0
    groups: list[tuple[SimilarPair, list[str]]] = field(default_factory=list)


def find_similar(course: ClassResults, given: set[Shingle]) -> list[ExerciseSimilarity]:
    """Find similar answers in each exercise of a part, ignoring what is in `given_shingles`."""
    exercises = dict.fromkeys(exercise for hand_in in course.graded.values() for exercise in hand_in.answers)
    return [
        compare(exercise, {student: h.answers[exercise] for student, h in course.graded.items() if exercise in h.answers}, given)
        for exercise in exercises
    ]


def given_shingles(course: ClassResults) -> set[Shingle]:
    """Return the shingles that nobody needs to copy: those of the released text, the solution, and right variants."""
    texts = [answer.source for answer in answers.read(course.part) if not answer.loses]
    for cell in course.source.cells:
        if kind_of(cell) in ("exercise", "example", "given"):
            texts += [cell.source, _MARKS.sub(STUB, cell.source)]
    return {run for text in texts for run in tokens.shingles(text)}


def compare(exercise: str, sources: dict[str, str], given: set[Shingle]) -> ExerciseSimilarity:
    """Compare the answers to one exercise.

    Parameters
    ----------
    sources : dict of str to str
        The answers, by student.
    given : set of Shingle
        Shingles that do not count (see `given_shingles`).
    """
    own = {student: tokens.shingles(source).keys() - given for student, source in sources.items()}
    having = Counter(run for runs in own.values() for run in runs)
    most = max(COMMON_MIN_STUDENTS, COMMON_FRACTION * len(own))
    columns = {run: i for i, run in enumerate(run for run, n in having.items() if n <= most)}
    weights = np.array([weight(having[run], len(own)) for run in columns])
    students = list(own)
    places = [sorted(columns[run] for run in own[student] if run in columns) for student in students]
    found = ExerciseSimilarity(exercise)
    if not columns:
        found.short = len(students)
        return found
    starts = np.cumsum([0, *map(len, places)])
    table = sparse.csr_matrix((np.ones(starts[-1]), np.concatenate(places).astype(int), starts), (len(students), len(columns)))
    whole = table @ weights
    found.compared = int(np.count_nonzero(whole >= MIN_SHARED_WEIGHT))
    found.short = len(students) - found.compared
    shared = sparse.triu(table.multiply(weights) @ table.T, k=1).tocoo()  # it holds only pairs with something in common
    smaller = np.minimum(whole[shared.row], whole[shared.col])
    alike = (shared.data >= MIN_SHARED_WEIGHT) & (shared.data >= MIN_SHARED_FRACTION * smaller)
    for i, j, runs, least in zip(*(a[alike].tolist() for a in (shared.row, shared.col, shared.data, smaller)), strict=True):
        found.pairs.append(SimilarPair(exercise, (students[i], students[j]), min(1.0, runs / least), runs))
    found.pairs.sort(key=lambda pair: (-pair.share * pair.runs, pair.students))
    found.groups = connected_groups(found.pairs)
    return found


def shared_lines(a: str, b: str, given: set[Shingle]) -> tuple[set[int], set[int]]:
    """Return the lines of two answers that hold their shared shingles."""
    here, there = tokens.shingles(a), tokens.shingles(b)
    both = (here.keys() & there.keys()) - given
    return {line for run in both for line in here[run]}, {line for run in both for line in there[run]}


def weight(having: int, students: int) -> float:
    """Return the weight of a shingle that `having` students have: 1 for two of them, less for more.

    >>> [round(weight(n, 1000), 2) for n in (2, 10, 100)]
    [1.0, 0.74, 0.37]
    """
    return min(1.0, math.log((students + 1) / having) / math.log((students + 1) / 2))


def connected_groups(pairs: list[SimilarPair]) -> list[tuple[SimilarPair, list[str]]]:
    """Return the groups of `ExerciseSimilarity`, from its pairs."""
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
    shown: dict[str, tuple[SimilarPair, list[str]]] = {}
    for pair in pairs:
        shown.setdefault(first(pair.students[0]), (pair, sorted(members[first(pair.students[0])])))
    return list(shown.values())
