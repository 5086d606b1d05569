"""The folder of a run: its settings, its last checkpoint, its report. A run that is there already is not written over."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np

from course_lib import students
from course_lib.gpt.broadcast_text import call_on_rank0, error_text, first_nonempty
from course_lib.gpt.settings import Settings, SettingsError
from course_lib.gpt.training import full_state
from course_lib.gpt.training.trainer import Trainer

RESUME_FIELDS = ("width", "heads", "depth", "length", "experts", "batch", "lr", "clip", "seed")  # of a run that goes on


def last_step(path: Path) -> int | None:
    """The step of a run's last whole checkpoint; None where there is none."""
    try:
        return int(json.loads((path / "checkpoint" / "index.json").read_text())["step"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def checkpoint_status(path: Path) -> str:
    """What a run that ends here has left, in a sentence."""
    step = last_step(path)
    return "There is no checkpoint yet." if step is None else f"The checkpoint of step {step} is whole: --resume goes on from there."


class CheckpointWriteError(RuntimeError):
    """A checkpoint could not be written; the message says where, and what is there still."""


class RunDirectory:
    """Where a run is kept; what it does is collective.

    Parameters
    ----------
    path : str or Path
    comm : Communicator
        All ranks. Rank 0 looks, and makes the folder.
    settings : Settings
    text : numpy.ndarray
        What the run learns from, uint8.
    name : str
        The same in words.
    resume : bool
        Whether to go on with what is there.

    Raises
    ------
    SettingsError
        There is a run already, and it is not to go on; or there is none, or another, and it is; or nothing can be written there, or
        something else would be written over.
    """

    def __init__(self, path: str | Path, comm: object, settings: Settings, text: np.ndarray, name: str, resume: bool):
        self.path, self.comm, self.resume = Path(path), comm, resume
        self.checkpoint = self.path / "checkpoint"
        call_on_rank0(comm, lambda: self._prepare(settings, text, name), SettingsError)

    def _prepare(self, settings: Settings, text: np.ndarray, name: str) -> str:
        notes, there = self.path / "run.json", (self.checkpoint / "index.json").exists()
        own = {key: getattr(settings, key) for key in RESUME_FIELDS} | {"text": name, "sha256": hashlib.sha256(text).hexdigest()}
        if there and not self.resume:
            raise SettingsError(f"{self.path} has a run already: go on with it by --resume, or choose another folder by --out.")
        if self.resume and not there:
            raise SettingsError(
                f"there is no checkpoint in {self.path} to go on from. Leave out --resume, or choose another folder by --out."
            )
        before = self._read(notes)
        if self.resume:
            if before is None:
                raise SettingsError(f"there is no {notes}, which says of which run the checkpoint is.")
            for key in RESUME_FIELDS:
                if before[key] != own[key]:
                    raise SettingsError(
                        f"the run in {self.path} has {key} {before[key]!r}, and this one {own[key]!r}: a run goes on with the same."
                    )
            if before["sha256"] != own["sha256"]:
                raise SettingsError(f"the run in {self.path} has learnt from another text ({before['text']}), and this one is {name}.")
            return ""
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        if any(self.checkpoint.iterdir()) and before is None:  # what is no checkpoint's, the student's `save` would remove
            raise SettingsError(f"{self.checkpoint} has files that are of no run: choose another folder by --out.")
        new = notes.with_suffix(".new")
        new.write_text(json.dumps(own, indent=1))
        os.replace(new, notes)
        return ""

    @staticmethod
    def _read(notes: Path) -> dict | None:
        """What is noted of a run; SettingsError where something else has its name."""
        if not notes.exists():
            return None
        try:
            found = json.loads(notes.read_text())
        except ValueError as error:
            raise SettingsError(f"{notes} cannot be read: {error}.") from None
        if not isinstance(found, dict) or not {*RESUME_FIELDS, "text", "sha256"} <= found.keys():
            raise SettingsError(f"{notes} is not what a run of this program has noted: choose another folder by --out.")
        return found

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint, by the student's `save`.

        Raises
        ------
        Unwritten
            On a rank that cannot write.
        """
        save = students.get(trainer.functions, "save")
        try:
            save(str(self.checkpoint), trainer.step, full_state.local_shards(trainer), trainer.groups.ordered)
        except Exception as error:
            if type(error).__module__.startswith("course_lib."):  # another rank is to say what is wrong
                raise
            raise CheckpointWriteError(
                f"could not write the checkpoint of step {trainer.step} to {self.checkpoint}: {error_text(error)}."
            ) from error

    def load(self, trainer: Trainer) -> None:
        """Go on from the checkpoint, read by the student's `load`.

        Raises
        ------
        SettingsError
            It is damaged, or of another model. All ranks raise it.
        """
        load, wrong = students.get(trainer.functions, "load"), ""
        try:
            step, loaded = load(str(self.checkpoint), trainer.groups.ordered)
            if not isinstance(step, (int, np.integer)) or step < 0:
                wrong = f"its step is {step!r}, and no number of steps."
        except (ValueError, OSError, TypeError, KeyError) as error:
            wrong = error_text(error)
        problem = first_nonempty(self.comm, wrong)
        if problem:
            raise SettingsError(f"the checkpoint in {self.path} cannot be read: {problem}")
        try:
            full_state.restore(trainer, step, loaded)
        except full_state.CheckpointMismatch as error:
            raise SettingsError(str(error)) from None
