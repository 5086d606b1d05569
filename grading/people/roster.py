"""The class roster: `grading/roster.csv`, if there is one.

It has a line for each student. The column `id` is the name of their folder in `submitted/`, in all parts. `name` is what a platform
shows, "First Last" or "Last, First"; `email` is their address. If two have the same name, `canvas`, `moodle` and `brightspace` hold what
the platform calls them: on Canvas the user's number, on the others the name, or the numbers beside it in a download, one per
assignment, as in "987; 1022". `number` (the student's) and `login` are for `make grades` only.

`extension` is how much later than others they may hand in: "2 days" in all parts, "03_naive_forward: 2 days; 05: 12 hours" in these.
`dropped` names tests that do not count, neither their points nor their maximum: "03_naive_forward: the whole layer; 07" (all tests of part
07). `grading.people.allowances` reads both. A line whose id is `*` is not a student: what it grants applies to everybody.
"""

from __future__ import annotations

import csv
import itertools
import unicodedata
from pathlib import Path

from grading.paths import GRADING
from grading.people import allowances, ids

PLATFORMS = ("canvas", "moodle", "brightspace")
EVERYBODY = "*"


class RosterError(ValueError):
    """Invalid roster; the message says which line, and why."""


class Roster:
    """The students of a class.

    Attributes
    ----------
    rows : dict of str to dict of str to str
        The lines, by id, each with what everybody is granted.
    """

    def __init__(self, rows: list[dict[str, str]]):
        self._everybody = next((row for row in rows if row["id"] == EVERYBODY), {})
        self.rows = {row["id"]: row | self._granted(row) for row in rows if row["id"] != EVERYBODY}
        self._known: dict[tuple[str, str], set[str]] = {}
        for student, row in self.rows.items():
            names = {("name", way) for way in name_orders(row.get("name", ""))} | {("name", normalized_name(student))}
            keys = {(column, said.strip()) for column in PLATFORMS for said in row.get(column, "").split(";") if said.strip()}
            mails = {("email", row["email"].strip().casefold())} if row.get("email", "").strip() else set()
            for key in names | keys | mails:
                self._known.setdefault(key, set()).add(student)

    def row(self, student: str) -> dict[str, str]:
        """Return a student's line; for a student without one, the id and what everybody is granted."""
        return self.rows.get(student) or {"id": student} | self._granted({})

    def _granted(self, row: dict[str, str]) -> dict[str, str]:
        both = {column: (row.get(column, ""), self._everybody.get(column, "")) for column in allowances.ALLOWANCE_COLUMNS}
        return {column: "; ".join(filter(None, map(str.strip, said))) for column, said in both.items()}

    def knows(self, platform: str, key: str) -> bool:
        """Return whether a column of the roster identifies this user of a platform."""
        return (platform, key) in self._known

    def find(self, name: str, platform: str = "", key: str = "", number: str = "") -> list[str]:
        """Return the ids of those whom this may be: by the platform's number, by its key, else by id, name or address."""
        for kind, said in ((platform, number), (platform, key), ("email", name.casefold()), ("name", normalized_name(name))):
            if found := self._known.get((kind, said)):
                return [name] if name in found else sorted(found)
        return []


def read(path: Path = GRADING / "roster.csv") -> Roster | None:
    """Read the roster, or return None if there is none.

    Raises
    ------
    RosterError
        It has no column `id`; an id is missing, duplicate, or cannot be the name of a folder; or an allowance cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise RosterError(f"{path.name} is not in UTF-8. In a spreadsheet, save it as 'CSV UTF-8'.") from None
    above = 1 if text.startswith("sep=") else 0  # a line that spreadsheets may add
    lines = text.splitlines(keepends=True)[above:]
    head = lines[0].strip() if lines else ""
    delimiter = max(",;\t", key=head.count)
    table = csv.DictReader(lines, delimiter=delimiter)
    try:
        rows = [(table.line_num + above, {k.strip().lower(): (v or "") for k, v in row.items() if k}) for row in table]
    except csv.Error as error:
        raise RosterError(f"{path.name}, line {table.line_num + above}: {error}; is a closing quote missing?") from None
    if rows and "id" not in rows[0][1]:
        raise RosterError(f"{path.name} has no column 'id'; its first line is {head!r}, expected id,name,email.")
    seen: dict[str, int] = {}
    for line, row in rows:
        if broken := next((value for value in row.values() if delimiter in value.partition("\n")[2]), None):
            raise RosterError(f"{path.name}, up to line {line}: {broken[:40]!r} continues over several lines; is a closing quote missing?")
        if not any(value.strip() for value in row.values()):
            continue  # an empty line of a spreadsheet
        row["id"] = row["id"].strip()
        one = ids.case_folded(row["id"])
        why = f"it is also on line {seen[one]}" if one in seen else row["id"] != EVERYBODY and ids.id_problem(row["id"])
        if why:
            raise RosterError(f"{path.name}, line {line}: id {row['id']!r}: {why}.")
        seen[one] = line
        try:
            allowances.check(row)
        except allowances.AllowanceError as error:
            raise RosterError(f"{path.name}, line {line}: {error}.") from None
    return Roster([row for _, row in rows if row["id"]])


def normalized_name(name: str) -> str:
    """Normalize a name for comparing spellings: lowercase letters and digits, without accents, spaces, commas and apostrophes."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return "".join(c for c in plain.casefold() if c.isalnum())


def name_orders(name: str) -> set[str]:
    """Return the forms of a name in file names: First Last or LastFirst, wherever the last name begins."""
    words = name.replace(",", " ").split()
    return {normalized_name("".join(itertools.chain(words[i:], words[:i]))) for i in range(len(words))}
