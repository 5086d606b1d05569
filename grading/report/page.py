"""The report as one page of HTML, with nothing from elsewhere and no script."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from grading.authoring.build import points
from grading.plain import number, printable, readable
from grading.report import alike, figures
from grading.report.alike import Likeness
from grading.report.hand_ins import Course
from grading.report.mistakes import CAUSE, Mistake
from grading.report.tokens import Run

MOST_MISTAKES, MOST_FLAGS, MOST_GROUPS = 25, 200, 20  # on the page; the tables have them all
MOST_LINES, WIDEST = 300, 200  # of an answer that is shown


def html(
    course: Course,
    found: list[Mistake],
    names: dict[str, list[str]],
    without_names: str,
    likeness: list[Likeness],
    given: set[Run],
) -> str:
    """The page.

    Parameters
    ----------
    found : list of Mistake
        From `mistakes.find`.
    names, without_names : dict of str to list of str, str
        From `named.names`.
    likeness : list of Likeness
        From `alike.find`.
    given : set of Run
        From `alike.known`.
    """
    whole = figures.of_part(course) if course.graded else None
    tests = figures.of_tests(course) if course.graded else {}
    flagged = [(student, flag) for student, hand_in in course.graded.items() for flag in hand_in.flags]
    groups = sorted((group for like in likeness for group in like.groups), key=lambda group: -group[0].share * group[0].runs)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # of all that is not this project's own markup
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"called": readable, "late": late, "number": number}
    return environment.get_template("page.html").render(
        course=course,
        summary=summary(course, whole, tests, found),
        whole=whole,
        tests=tests,
        mistakes=found[:MOST_MISTAKES],
        more_mistakes=len(found) - MOST_MISTAKES,
        names=names,
        without_names=without_names,
        flagged=flagged[:MOST_FLAGS],
        more_flags=len(flagged) - MOST_FLAGS,
        likeness=likeness,
        groups=[(pair, members, answers(course, pair, given)) for pair, members in groups[:MOST_GROUPS]],
        more_groups=len(groups) - MOST_GROUPS,
        fewest=alike.FEWEST,
        share=alike.SHARE,
        common=alike.COMMON,
        students=sorted({*course.graded, *course.ungraded, *course.missing}),
        chance=2 / max(1, len(course.graded)) ** 0.5,
        written=datetime.now(),
    )


def summary(course: Course, whole: figures.Figures | None, tests: dict[str, figures.Figures], found: list[Mistake]) -> list[str]:
    """The class in a few sentences."""
    of_all = (
        f"Of {len(course.names)} students in the roster, {len(course.missing)} {'is' if len(course.missing) == 1 else 'are'} missing; "
        if course.has_roster
        else ""
    )
    rest = f", {len(course.ungraded)} are not" if course.ungraded else ""
    others = f" ({len(course.strangers)} of them not in the roster)" if course.strangers else ""
    said = [f"{of_all}{course.handed_in} handed in{others}; {len(course.graded)} are graded{rest}."]
    if course.due:
        said.append(f"{len(course.late) or 'Nobody'} came after {course.due:%Y-%m-%d %H:%M} UTC, when the part was due.")
    else:
        said.append("The gradebook has no due date, so nobody is called late.")
    if not whole:
        return said
    by_hand = points(course.source) - whole.most
    left_out = f" Up to {number(by_hand)} for written answers come on top, and are not counted here." if by_hand else ""
    said.append(f"The mean is {number(whole.mean)} of {number(whole.most)} points, the median {number(whole.median)}.{left_out}")
    if len(tests) > 1 and len({f.share for f in tests.values()}) > 1:
        hardest = min(tests, key=lambda test: tests[test].share)
        said.append(f"Hardest is “{readable(hardest)}”, with {100 * tests[hardest].share:.0f} % of its points on average.")
    if found and not found[0].follows:
        n = len(found[0].students)
        said.append(
            f"The commonest mistake, of {n} students: “{found[0].said.partition(CAUSE)[0].rstrip('.')}”."
            if n > 1
            else "No two made the same mistake."
        )
    return said


def answers(course: Course, pair: alike.Pair, given: set[Run]) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """Both answers of a pair: whose it is, and its lines; of each its indent, its text, and whether it shares something."""
    sources = [course.graded[student].answers[pair.exercise] for student in pair.students]
    marked = alike.shared_lines(*sources, given)
    shown = []
    for student, source, lines in zip(pair.students, sources, marked, strict=True):
        plain = [(i in lines, text.expandtabs()[:WIDEST]) for i, text in enumerate(source.splitlines(), 1)]
        texts = [(text[: len(text) - len(text.lstrip())], text.lstrip(), marked) for marked, text in plain]
        rest = [("", f"({len(texts) - MOST_LINES} more lines)", False)] if len(texts) > MOST_LINES else []
        shown.append((student, texts[:MOST_LINES] + rest))
    return shown


def late(seconds: float) -> str:
    """How late, in the largest unit that fits.

    >>> late(59), late(7300), late(200_000)
    ('1 min', '2 h', '2 days')
    """
    for unit, length in (("days", 86_400), ("h", 3600)):
        if seconds >= 2 * length or (seconds >= length and unit == "h"):
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1, seconds / 60):.0f} min"
