"""The most common mistakes of a class, in the words of the failed tests."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from grading.report.class_results import ClassResults

VARIES = "…"  # stands for what differs between submissions
MAX_MESSAGE_CHARS, MAX_CHARS_READ = 400, 4000  # characters of a message, and of the text that it is made from
CAUSE_PREFIX = " A usual cause: "  # how a check introduces the cause
FOLLOWS_FROM_OTHERS = "see the tests of"  # how a test says that it fails because others do

_SEED = re.compile(r" \(seed \d+\)$")
_KIND = re.compile(r"^(CheckFailed|RanksError): (?:ranks? [\d–, ]+: )?")
_VALUE = re.compile(r"; got (?!an? |None\b|\d)(\w+) .*$")  # the value that an answer returned, as Python shows it
_NAME = re.compile(r"(?<=variable )'\w+'|(?<=name )'\w+'")
_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
_DTYPE = r"(?:float|int|uint|complex|bool)\d*\b"
_STEPS = (
    (re.compile(r" \(?(?:cell \[\d*\]|<cell[^>]*>|cell \"[^\"]*\"), line \d+\)?"), ""),
    (re.compile(r"\branks? \d+(?:(?:–|, )\d+)*"), f"rank {VARIES}"),
    (re.compile(r"([(\[{])[-+]?\d[-+\d.,e –]*([)\]}])"), rf"\1{VARIES}\2"),  # shapes, positions, groups
    (re.compile(rf"(?<![\w.])(?<!all are )(?:{_NUMBER}|-?inf|nan)(?: (?:[GMk]i?B|B|ms|µs|s)\b)?(?![\w.]\w|\w)"), VARIES),
    (re.compile(rf"{VARIES}(?:(?:–|, | ){VARIES})+"), VARIES),  # several
    (re.compile(rf"\b(of {VARIES}) {_DTYPE}"), r"\1"),  # what a rank calls
    (re.compile(rf"\bworld(?={{{VARIES}}})"), "group"),
    (re.compile(rf"(?<=, expected ){_DTYPE}"), VARIES),  # a test draws it; the actual one reveals the mistake
    (re.compile(rf"(rank {VARIES}) wait\b"), r"\1 waits"),
    (re.compile(rf"(rank {VARIES}) have\b"), r"\1 has"),
    (re.compile(rf"(rank {VARIES}) were\b"), r"\1 was"),
)


@dataclass
class Mistake:
    """A message, and the students who got it.

    Attributes
    ----------
    message : str
        The message, without what differs between submissions.
    tests : list of str
        The tests that give it.
    students : dict of str to str
        The students who got it, and the full message of the first of the tests.
    follows : bool
        Whether it only says that something else is wrong.
    """

    message: str
    tests: list[str] = field(default_factory=list)
    students: dict[str, str] = field(default_factory=dict)

    @property
    def follows(self) -> bool:
        return FOLLOWS_FROM_OTHERS in self.message


def normalize_message(said: str) -> str:
    """Remove from a failed test's message what differs between submissions: seeds, cases, ranks, shapes and numbers.

    >>> normalize_message("CheckFailed: x on rank 3 has shape (2, 3), expected (2, 6), for mp_size 2, a batch of 2. (seed 7)")
    'x on rank … has shape (…), expected (…).'
    """
    text = " ".join(said[:MAX_CHARS_READ].split())
    checked, cause = text.startswith("CheckFailed"), []
    text = _KIND.sub("", _SEED.sub("", text))
    if checked:  # the course's own messages: the case follows the last "for"
        problem, *cause = text.partition(CAUSE_PREFIX)
        text = _VALUE.sub(rf"; got \1 {VARIES}", problem.rpartition(", for ")[0] or problem.rstrip(".")) + "."
    elif text.startswith(("NameError", "UnboundLocalError")):
        text = _NAME.sub(f"'{VARIES}'", text)
    for pattern, instead in _STEPS:
        text = pattern.sub(instead, text)
    kind, mark, text = text.partition("Error: ") if text.partition(": ")[0].endswith("Error") else ("", "", text)
    # Ranks that wait, or call something, each in the same words.
    text = kind + mark + ". ".join("; ".join(dict.fromkeys(part.split("; "))) for part in text.split(". "))
    text += "".join(cause)
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]} (truncated)"


def find_mistakes(course: ClassResults) -> list[Mistake]:
    """Return the mistakes of a class, the most common first; those that only follow from others come last."""
    found: dict[str, Mistake] = {}
    for student, hand_in in course.graded.items():
        for test, said in hand_in.failures.items():
            short = normalize_message(said)
            mistake = found.setdefault(short, Mistake(short))
            mistake.students.setdefault(student, said)
            if test not in mistake.tests:
                mistake.tests.append(test)
    order = list(course.tests)
    for mistake in found.values():
        mistake.tests.sort(key=order.index)
    # A later test often fails because of an earlier one.
    return sorted(found.values(), key=lambda m: (m.follows, -len(m.students), order.index(m.tests[0]), m.message))
