"""The folder of a run: its settings, its last checkpoint, its report. A run that is there already is not written over."""

from __future__ import annotations

import json
import os
from pathlib import Path

from course_lib import students
from course_lib.gpt import whole
from course_lib.gpt.first import first_of, on_first
from course_lib.gpt.settings import Settings, SettingsError
from course_lib.gpt.trainer import Trainer

SAME = ("width", "heads", "depth", "length", "experts", "batch", "lr", "clip", "seed")  # of a run that goes on


class Unwritten(RuntimeError):
    """A checkpoint could not be written; the message says where, and what is there still."""


class Folder:
    """Where a run is kept; what it does is collective.

    Parameters
    ----------
    path : str or Path
    comm : Communicator
        All ranks. Rank 0 looks, and makes the folder.
    settings : Settings
    text : str
        What the run learns from, in words.
    resume : bool
        Whether to go on with what is there.

    Raises
    ------
    SettingsError
        There is a run already, and it is not to go on; or there is none, or another, and it is; or nothing can be written there.
    """

    def __init__(self, path: str | Path, comm: object, settings: Settings, text: str, resume: bool):
        self.path, self.comm, self.resume = Path(path), comm, resume
        self.checkpoint = self.path / "checkpoint"
        on_first(comm, lambda: self._prepare(settings, text), SettingsError)

    def _prepare(self, settings: Settings, text: str) -> str:
        notes, there = self.path / "run.json", (self.checkpoint / "index.json").exists()
        own = {name: getattr(settings, name) for name in SAME} | {"text": text}
        if there and not self.resume:
            raise SettingsError(f"{self.path} has a run already: go on with it by --resume, or choose another folder by --out.")
        if self.resume and not there:
            raise SettingsError(
                f"there is no checkpoint in {self.path} to go on from. Leave out --resume, or choose another folder by --out."
            )
        try:
            if self.resume:
                before = json.loads(notes.read_text())
                for name, value in own.items():
                    if before.get(name) != value:
                        raise SettingsError(
                            f"the run in {self.path} has {name} {before.get(name)!r}, and this one {value!r}: a run goes on with the same."
                        )
                return ""
            self.checkpoint.mkdir(parents=True, exist_ok=True)
            new = notes.with_suffix(".new")
            new.write_text(json.dumps(own, indent=1))
            os.replace(new, notes)
        except (OSError, json.JSONDecodeError, AttributeError) as error:
            raise SettingsError(f"{notes} cannot be read or written: {error}.") from None
        return ""

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint, by the student's `save`.

        Raises
        ------
        Unwritten
            On a rank that cannot write.
        """
        save = students.get(trainer.functions, "save")
        try:
            save(str(self.checkpoint), trainer.step, whole.parts(trainer), trainer.groups.ordered)
        except Exception as error:
            if type(error).__module__.startswith("course_lib."):  # another rank is to say what is wrong
                raise
            raise Unwritten(
                f"could not write the checkpoint of step {trainer.step} to {self.checkpoint}: {error}. The one before is whole, if there "
                "was one: make room, and go on by --resume."
            ) from error

    def load(self, trainer: Trainer) -> None:
        """Go on from the checkpoint, read by the student's `load`.

        Raises
        ------
        SettingsError
            It is damaged, or of another model. All ranks raise it.
        """
        load, said = students.get(trainer.functions, "load"), ""
        try:
            step, loaded = load(str(self.checkpoint), trainer.groups.ordered)
        except (ValueError, OSError) as error:
            said = str(error) or type(error).__name__
        problem = first_of(self.comm, said)
        if problem:
            raise SettingsError(f"the checkpoint in {self.path} cannot be read: {problem}")
        try:
            whole.take(trainer, step, loaded)
        except whole.OtherModel as error:
            raise SettingsError(str(error)) from None
