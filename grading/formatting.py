"""Format texts for display: untrusted text in one line without control characters, points, and names of tests."""

from __future__ import annotations

MAX_SENTENCE_CHARS = 500  # characters of a message


def printable(text: str) -> str:
    """Replace what cannot be printed in an untrusted text by its code.

    >>> printable("ada: 15 of 15\\x1b[1A")
    'ada: 15 of 15\\\\x1b[1A'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def display_name(grade_id: str) -> str:
    """Return the readable name of a test or an exercise.

    >>> display_name("test-the-whole-layer")
    'the whole layer'
    """
    return grade_id.removeprefix("test-").removeprefix("exercise-").replace("-", " ")


def is_utf8(text: str) -> bool:
    """Return whether a name can be encoded as UTF-8; file names may have an older encoding.

    >>> is_utf8("José"), is_utf8("Jos" + chr(0xDC82))
    (True, False)
    """
    return not any("\ud800" <= c <= "\udfff" for c in text)


def one_line(text: object) -> str:
    """Format an error in one line of bounded length.

    >>> one_line("expected 4\\n  got 9\\ud800")
    'expected 4 got 9\\\\ud800'
    """
    return printable(" ".join(str(text).split()))[:MAX_SENTENCE_CHARS]


def format_points(value: float) -> str:
    """Format points with at most two decimals.

    >>> format_points(13.0), format_points(8.0526)
    ('13', '8.05')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")
