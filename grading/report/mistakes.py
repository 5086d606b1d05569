"""The commonest mistakes of a class, in the words of the failed tests."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from grading.report.class_results import ClassResults

VARIES = "…"  # stands for what differs from hand-in to hand-in
MAX_MESSAGE_CHARS, MAX_CHARS_READ = 400, 4000  # characters of a sentence, and of what it is made from
CAUSE_PREFIX = " A usual cause: "  # what a check puts in front of it
FOLLOWS_FROM_OTHERS = "see the tests of"  # how a test says that it fails where others do

_SEED = re.compile(r" \(seed \d+\)$")
_KIND = re.compile(r"^(CheckFailed|RanksError): (?:ranks? [\d–, ]+: )?")
_VALUE = re.compile(r"; got (?!an? |None\b|\d)(\w+) .*$")  # what an answer returned, as Python shows it
_NAME = re.compile(r"(?<=variable )'\w+'|(?<=name )'\w+'")
_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
_DTYPE = r"(?:float|int|uint|complex|bool)\d*\b"
_STEPS = (
    (re.compile(r" \(?(?:cell \[\d*\]|<cell[^>]*>|cell \"[^\"]*\"), line \d+\)?"), ""),
    (re.compile(r"\branks? \d+(?:(?:–|, )\d+)*"), f"rank {VARIES}"),
    (re.compile(r"([(\[{])[-+]?\d[-+\d.,e –]*([)\]}])"), rf"\1{VARIES}\2"),  # shapes, places, groups
    (re.compile(rf"(?<![\w.])(?<!all are )(?:{_NUMBER}|-?inf|nan)(?: (?:[GMk]i?B|B|ms|µs|s)\b)?(?![\w.]\w|\w)"), VARIES),
    (re.compile(rf"{VARIES}(?:(?:–|, | ){VARIES})+"), VARIES),  # several
    (re.compile(rf"\b(of {VARIES}) {_DTYPE}"), r"\1"),  # what a rank calls
    (re.compile(rf"\bworld(?={{{VARIES}}})"), "group"),
    (re.compile(rf"(?<=, expected ){_DTYPE}"), VARIES),  # a test draws it; what came instead tells the mistake
    (re.compile(rf"(rank {VARIES}) wait\b"), r"\1 waits"),
    (re.compile(rf"(rank {VARIES}) have\b"), r"\1 has"),
    (re.compile(rf"(rank {VARIES}) were\b"), r"\1 was"),
)


@dataclass
class Mistake:
    """A sentence, and who got it.

    Attributes
    ----------
    message : str
        The sentence, without what differs from hand-in to hand-in.
    tests : list of str
        Which tests say it.
    students : dict of str to str
        Who got it, and what the first of the tests really said.
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
    """What a failed test says, without what differs from hand-in to hand-in: seeds, cases, ranks, shapes and numbers.

    >>> normalize_message("CheckFailed: x on rank 3 has shape (2, 3), expected (2, 6), for mp_size 2, a batch of 2. (seed 7)")
    'x on rank … has shape (…), expected (…).'
    """
    text = " ".join(said[:MAX_CHARS_READ].split())
    checked, cause = text.startswith("CheckFailed"), []
    text = _KIND.sub("", _SEED.sub("", text))
    if checked:  # the course's own words: the case stands behind the last "for"
        problem, *cause = text.partition(CAUSE_PREFIX)
        text = _VALUE.sub(rf"; got \1 {VARIES}", problem.rpartition(", for ")[0] or problem.rstrip(".")) + "."
    elif text.startswith(("NameError", "UnboundLocalError")):
        text = _NAME.sub(f"'{VARIES}'", text)
    for pattern, instead in _STEPS:
        text = pattern.sub(instead, text)
    kind, mark, text = text.partition("Error: ") if text.partition(": ")[0].endswith("Error") else ("", "", text)
    # Ranks that wait, or call something, each with the same words.
    text = kind + mark + ". ".join("; ".join(dict.fromkeys(part.split("; "))) for part in text.split(". "))
    text += "".join(cause)
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]} (the rest is cut)"


def find_mistakes(course: ClassResults) -> list[Mistake]:
    """The mistakes of a class, the commonest first; those that only follow from others last."""
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
