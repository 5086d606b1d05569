"""Submissions in submitted/, where nbgrader expects them: stored atomically, and never in another person's place."""

from __future__ import annotations

import os
import shutil
from datetime import datetime
from pathlib import Path

from grading.collecting import records
from grading.collecting.choosing import duplicate_name_message
from grading.collecting.contents import inspect_notebook
from grading.collecting.owners import CandidateSubmission
from grading.people.ids import case_folded
from grading.people.roster import Roster


class NotStored(Exception):
    """A submission cannot be stored; the message says why."""


class Submitted:
    """The stored submissions of a part.

    Parameters
    ----------
    home : Path
    part : str
    people : Roster, optional
    """

    def __init__(self, home: Path, part: str, people: Roster | None = None):
        self.home, self.part, self.people = home, part, people
        self._numbers = records.numbers(home, part)
        self._names: dict[str, set[str]] = {}
        for path in (home / "submitted").glob("*/"):
            self._names.setdefault(case_folded(path.name), set()).add(path.name)

    def put(self, hand_in: CandidateSubmission, student: str, time: datetime | None) -> str | None:
        """Store a submission, with a timestamp.txt if its time is known.

        Returns
        -------
        str or None
            The one that it replaced.

        Raises
        ------
        NotStored
            It is older than the stored one, is another person's, or cannot be written.
        """
        target = self.home / "submitted" / student / self.part
        partial, stamp, there = target / f".{self.part}.part", target / "timestamp.txt", target / f"{self.part}.ipynb"
        try:
            before, now = records.read(self.home, student, self.part), make_record(hand_in)
            other = there.exists() and there.read_bytes() != hand_in.file.path.read_bytes()
            self._check(hand_in, student, before, there if other else None)
            if there.exists() and not other and before and (not hand_in.platform or before["age"] >= now["age"]):
                return None  # it was collected before, from a place that told more about it
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(hand_in.file.path, partial)
            os.replace(partial, there)
            records.write(self.home, student, self.part, now)
            stamp.unlink(missing_ok=True)
            if other:
                (target / "not_graded.txt").unlink(missing_ok=True)  # of the previous submission
            if time:
                stamp.write_text(f"{time:%Y-%m-%d %H:%M:%S} UTC\n")
        except (OSError, ValueError) as error:  # such as a name too long for the disk
            raise NotStored(f"cannot be written: {getattr(error, 'strerror', None) or error}") from error
        if other:
            return f"the one collected before, {before['file']}" if before else "the one that was there"
        return None

    def _check(self, hand_in: CandidateSubmission, student: str, before: dict, there: Path | None) -> None:
        """Raise NotStored if the stored submission is somebody else's, or has precedence."""
        alike = self._names.get(case_folded(student), set()) - {student}
        if alike:
            raise NotStored(f"{student} may be the same student as {', '.join(sorted(alike))} in submitted/; rename the folder or file")
        said = hand_in.platform
        if said and (owner := self._numbers.get((said.platform, said.number), student)) != student:
            raise NotStored(
                f"user {said.number} is {owner}, from whom a hand-in was collected before; is {student} another name for the same person?"
            )
        for part, record in records.records_of_student(self.home, student):
            same = said and record.get("platform") == said.platform and (part == self.part or said.platform == "canvas")
            sure = said and self.people is not None and self.people.knows(said.platform, said.number)
            if same and record["number"] != said.number and not sure:
                numbers = [record["number"], said.number]
                raise NotStored(
                    f"{duplicate_name_message(student, said.platform, numbers)}. "
                    f"{record['number']} was collected before, from {record['file']}"
                )
        if not there or not inspect_notebook(there).is_readable:
            return
        names = (before.get("platform"), before.get("number")) if before.get("platform") else ()
        of_same = before and names == ((said.platform, said.number) if said else ())
        if not hand_in.is_readable:
            why = "cannot be read as a notebook, unlike"
        elif of_same and before["age"] > list(hand_in.age):
            why = "older than"
        else:
            return
        raise NotStored(f"{why} {before.get('file', 'the one there')}, which was collected before; to use it, delete {there.parent} first")


def make_record(hand_in: CandidateSubmission) -> dict:
    """Build the record of a submission for `records`."""
    said = hand_in.platform
    of_platform = dict(platform=said.platform, key=said.key, number=said.number, name=said.name) if said else dict(platform=None)
    return of_platform | dict(age=list(hand_in.age), file=str(hand_in.file))
