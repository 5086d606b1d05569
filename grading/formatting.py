"""For a person's eyes: what a stranger wrote, in one line and without what moves a terminal's cursor; points, and names of tests."""

from __future__ import annotations

MAX_SENTENCE_CHARS = 500  # characters of a sentence


def printable(text: str) -> str:
    """A stranger's text, with what cannot be printed as its number.

    >>> printable("ada: 15 of 15\\x1b[1A")
    'ada: 15 of 15\\\\x1b[1A'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def display_name(grade_id: str) -> str:
    """A test's or an exercise's name, as a person writes it.

    >>> display_name("test-the-whole-layer")
    'the whole layer'
    """
    return grade_id.removeprefix("test-").removeprefix("exercise-").replace("-", " ")


def is_utf8(text: str) -> bool:
    """Whether a name can be written to a file; one of a disk may be in an older code.

    >>> is_utf8("José"), is_utf8("Jos" + chr(0xDC82))
    (True, False)
    """
    return not any("\ud800" <= c <= "\udfff" for c in text)


def one_line(text: object) -> str:
    """What went wrong, in one line of bounded length.

    >>> one_line("expected 4\\n  got 9\\ud800")
    'expected 4 got 9\\\\ud800'
    """
    return printable(" ".join(str(text).split()))[:MAX_SENTENCE_CHARS]


def format_points(value: float) -> str:
    """Points, with two digits behind the point at most.

    >>> format_points(13.0), format_points(8.0526)
    ('13', '8.05')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")
