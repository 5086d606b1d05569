"""Survey at the end of each part: the minutes it took, what was hardest, what was unclear. Ungraded; the report shows the answers."""

from __future__ import annotations

import re

HEADING = "## How was it?"
LABELS = {"minutes": "Minutes it took you", "hardest": "What was hardest", "unclear": "What was unclear"}
TEXT = "\n".join(
    [
        HEADING,
        "",
        "Double-click here to answer. It is not graded, and your instructor sees the answers without names.",
        "",
        *(f"- {label}: " for label in LABELS.values()),
    ]
)
MAX_CHARS, MAX_MINUTES = 500, 6000  # of an answer
_LABEL = re.compile("|".join(rf"^[-*•\s]*{re.escape(label)}\s*:?" for label in LABELS.values()), re.MULTILINE | re.IGNORECASE)


def read_answers(text: str) -> dict[str, str]:
    """Read the answers from the text of a submitted survey cell.

    Parameters
    ----------
    text : str
        Untrusted; a student may have changed everything in it.

    Returns
    -------
    dict of str to str
        By the keys of `LABELS`, without the unanswered ones, each on one line of at most `MAX_CHARS` characters.

    Examples
    --------
    >>> read_answers("- Minutes it took you: 50\\n- What was hardest: the sum\\nover two axes\\n- What was unclear:")
    {'minutes': '50', 'hardest': 'the sum over two axes'}
    """
    found = [*_LABEL.finditer(text)]
    ends = [*(match.start() for match in found[1:]), len(text)]
    answers = {}
    for match, end in zip(found, ends, strict=False):
        key = next(key for key, label in LABELS.items() if label.lower() in match[0].lower())
        answer = " ".join(text[match.end() : end].split())[:MAX_CHARS]
        if answer and key not in answers:
            answers[key] = answer
    return answers


def minutes(answer: str) -> float | None:
    """Return the minutes in an answer; None if it gives no plausible time.

    Examples
    --------
    >>> [minutes(answer) for answer in ("50", "about 1 h 20", "1.5 hours", "1:30", "40-60 min", "long")]
    [50.0, 80.0, 90.0, 90.0, 50.0, None]
    """
    answer = answer.replace(",", ".").lower()
    if clock := re.search(r"\b(\d{1,2}):(\d\d)\b", answer):
        value = 60.0 * int(clock[1]) + int(clock[2])
    elif hours := re.search(r"(\d+(?:\.\d+)?)\s*h(?:ours?|rs?)?\b\s*(?:and\s*)?(\d+)?", answer):
        value = 60 * float(hours[1]) + float(hours[2] or 0)
    elif span := re.search(r"(\d+(?:\.\d+)?)\s*(?:-|–|to)\s*(\d+(?:\.\d+)?)", answer):
        value = (float(span[1]) + float(span[2])) / 2
    elif number := re.search(r"(?<![\d.-])\d+(?:\.\d+)?", answer):
        value = float(number[0])
    else:
        return None
    return value if 0 < value <= MAX_MINUTES else None


def expected_minutes(title: str) -> int | None:
    """Return the minutes that a part's first text promises ("About 40 minutes")."""
    found = re.search(r"About (\d+) minutes", title)
    return int(found[1]) if found else None
