"""Parse dates and times in folder names, in the order and language of several countries."""

from __future__ import annotations

import re
from datetime import datetime

# The first letters of the months in English, German, French, Spanish, Italian, Dutch, Portuguese and Swedish.
MONTHS = (
    "jan ene gen jän",
    "feb fév fev",
    "mar mär mrt maa",
    "apr avr abr",
    "may mai mag mei maj",
    "jun juin giu",
    "jul juil lug",
    "aug aoû aou ago",
    "sep set",
    "oct okt out ott",
    "nov",
    "dec dez déc dic",
)
MONTH_NUMBERS = {start: number for number, starts in enumerate(MONTHS, 1) for start in starts.split()}
CLOCK = re.compile(r"\b(?P<hour>\d{1,2})[ .:h-]?(?P<minute>\d\d)\s*(?P<half>[ap]\.?\s?m\.?)?$", re.IGNORECASE)
NUMERIC_DATE = re.compile(r"(?P<year>\d{4})-(?P<month>\d\d?)-(?P<day>\d\d?)$")
WORDED_DATE = re.compile(r"(?P<day>\d\d?)?\s*(?P<month>[^\W\d_]{3,})\s*(?P<other>\d\d?)?\s*(?P<year>\d{4})$")


def parse_date(text: str) -> datetime | None:
    """Parse a time such as "Oct 3, 2026 1159 PM", "3 October, 2026 2359" or "2026-10-03 23-59"; None if it cannot be read.

    >>> parse_date("Oct 3, 2026 1159 PM"), parse_date("3. Oktober 2026 23-59"), parse_date("some day")
    (datetime.datetime(2026, 10, 3, 23, 59), datetime.datetime(2026, 10, 3, 23, 59), None)
    """
    clock = CLOCK.search(text.strip())
    if not clock:
        return None
    date = re.sub(r"[\s.,]+|\b(?:de|of)\b", " ", text.strip()[: clock.start()]).strip().lower()
    found = NUMERIC_DATE.fullmatch(date) or WORDED_DATE.fullmatch(re.sub(" +", " ", date))
    if not found:
        return None
    words, half = found.groupdict(), (clock["half"] or "").lower()[:1]
    day = words["day"] or words.get("other")
    month = words["month"] if words["month"].isdigit() else MONTH_NUMBERS.get(words["month"][:4]) or MONTH_NUMBERS.get(words["month"][:3])
    hour = int(clock["hour"]) % 12 + 12 * (half == "p") if half else int(clock["hour"])
    try:
        return datetime(int(words["year"]), int(month), int(day), hour, int(clock["minute"]))
    except (TypeError, ValueError):
        return None
