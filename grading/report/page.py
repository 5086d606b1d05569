"""The report as one self-contained HTML page without scripts."""

from __future__ import annotations

import statistics
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from grading.authoring import survey
from grading.authoring.build import points
from grading.formatting import display_name, format_points, printable
from grading.report import item_analysis, similarity
from grading.report.class_results import ClassResults
from grading.report.mistakes import CAUSE_PREFIX, Mistake
from grading.report.similarity import ExerciseSimilarity
from grading.report.tokens import Shingle

MOST_MISTAKES, MOST_FLAGS, MOST_GROUPS = 25, 200, 20  # on the page; the tables have all of them
MOST_COMMENTS = 300  # of each question of the survey
MOST_LINES, MAX_LINE_COLUMNS = 300, 200  # of an answer on the page


def html(
    course: ClassResults,
    found: list[Mistake],
    names: dict[str, list[str]],
    without_names: str,
    likeness: list[ExerciseSimilarity],
    given: set[Shingle],
) -> str:
    """Render the page.

    Parameters
    ----------
    found : list of Mistake
        From `mistakes.find_mistakes`.
    names, without_names : dict of str to list of str, str
        From `variant_messages.name_mistakes`.
    likeness : list of ExerciseSimilarity
        From `similarity.find_similar`.
    given : set of Shingle
        From `similarity.given_shingles`.
    """
    whole = item_analysis.part_statistics(course) if course.graded else None
    tests = item_analysis.test_statistics(course) if course.graded else {}
    flagged = [(student, flag) for student, hand_in in course.graded.items() for flag in hand_in.flags]
    groups = sorted((group for like in likeness for group in like.groups), key=lambda group: -group[0].share * group[0].runs)
    minutes = sorted(filter(None, (survey.minutes(answers.get("minutes", "")) for answers in course.surveys)))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # everything but this project's own markup
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"called": display_name, "late": format_lateness, "number": format_points}
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
        fewest=similarity.MIN_SHARED_WEIGHT,
        share=similarity.MIN_SHARED_FRACTION,
        common=similarity.COMMON_FRACTION,
        students=sorted({*course.graded, *course.ungraded, *course.missing}),
        chance=2 / max(1, len(course.graded)) ** 0.5,
        written=datetime.now(),
        minutes=minutes,
        median_minutes=statistics.median(minutes) if minutes else None,
        expected_minutes=survey.expected_minutes("\n".join(cell.source for cell in course.source.cells[:1])),
        comments={
            label: sorted(answers[key] for answers in course.surveys if key in answers)[:MOST_COMMENTS]
            for key, label in survey.LABELS.items()
            if key != "minutes"
        },
    )


def summary(
    course: ClassResults,
    whole: item_analysis.PointsStatistics | None,
    tests: dict[str, item_analysis.PointsStatistics],
    found: list[Mistake],
) -> list[str]:
    """Summarize the class in a few sentences."""
    of_all = (
        f"Of {len(course.names)} students in the roster, {len(course.missing)} {'is' if len(course.missing) == 1 else 'are'} missing; "
        if course.has_roster
        else ""
    )
    rest = f", {len(course.ungraded)} are not" if course.ungraded else ""
    others = f" ({len(course.strangers)} of them not in the roster)" if course.strangers else ""
    said = [f"{of_all}{course.handed_in} handed in{others}; {len(course.graded)} are graded{rest}."]
    if course.due:
        said.append(f"{len(course.late) or 'Nobody'} handed in after the due date, {course.due:%Y-%m-%d %H:%M} UTC.")
    else:
        said.append("The gradebook has no due date, so nobody counts as late.")
    if not whole:
        return said
    by_hand = points(course.source) - whole.most
    left_out = f" Written answers, worth up to {format_points(by_hand)} more, are not counted here." if by_hand else ""
    said.append(
        f"The mean is {format_points(whole.mean)} of {format_points(whole.most)} points, "
        f"the median {format_points(whole.median)}.{left_out}"
    )
    if len(tests) > 1 and len({f.share for f in tests.values()}) > 1:
        hardest = min(tests, key=lambda test: tests[test].share)
        said.append(f"The hardest exercise is “{display_name(hardest)}”, with {100 * tests[hardest].share:.0f} % of its points on average.")
    if found and not found[0].follows:
        n = len(found[0].students)
        said.append(
            f"The most common mistake, made by {n} students: “{found[0].message.partition(CAUSE_PREFIX)[0].rstrip('.')}”."
            if n > 1
            else "No two students made the same mistake."
        )
    return said


def answers(course: ClassResults, pair: similarity.SimilarPair, given: set[Shingle]) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """Return both answers of a pair: the student, and the lines; of each line, its indent, its text, and whether it shares something."""
    sources = [course.graded[student].answers[pair.exercise] for student in pair.students]
    marked = similarity.shared_lines(*sources, given)
    shown = []
    for student, source, lines in zip(pair.students, sources, marked, strict=True):
        plain = [(i in lines, text.expandtabs()[:MAX_LINE_COLUMNS]) for i, text in enumerate(source.splitlines(), 1)]
        texts = [(text[: len(text) - len(text.lstrip())], text.lstrip(), marked) for marked, text in plain]
        rest = [("", f"({len(texts) - MOST_LINES} more lines)", False)] if len(texts) > MOST_LINES else []
        shown.append((student, texts[:MOST_LINES] + rest))
    return shown


def format_lateness(seconds: float) -> str:
    """Format a delay in the largest unit that fits.

    >>> format_lateness(59), format_lateness(7300), format_lateness(200_000)
    ('1 min', '2 h', '2 days')
    """
    for unit, length in (("days", 86_400), ("h", 3600)):
        if seconds >= 2 * length or (seconds >= length and unit == "h"):
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1, seconds / 60):.0f} min"
