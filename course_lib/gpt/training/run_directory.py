"""Run directory: the settings, the last checkpoint and the report of a run. An existing run is never overwritten."""

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

RESUME_FIELDS = (
    "width",
    "heads",
    "depth",
    "length",
    "experts",
    "batch",
    "lr",
    "clip",
    "seed",
)  # fields that must stay the same when a run is resumed


def last_step(path: Path) -> int | None:
    """Step of a run's last complete checkpoint; None if there is none."""
    try:
        return int(json.loads((path / "checkpoint" / "index.json").read_text())["step"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def checkpoint_status(path: Path) -> str:
    """Describe the last checkpoint of a run that ends here, in a sentence."""
    step = last_step(path)
    return "There is no checkpoint yet." if step is None else f"The checkpoint of step {step} is complete: --resume continues from there."


class CheckpointWriteError(RuntimeError):
    """A checkpoint could not be written; the message says where, and which checkpoint remains."""


class RunDirectory:
    """Directory of a run; its methods are collective.

    Parameters
    ----------
    path : str or Path
    comm : Communicator
        All ranks. Rank 0 checks and creates the folder.
    settings : Settings
    text : numpy.ndarray
        The training text, uint8.
    name : str
        Description of the text.
    resume : bool
        Whether to resume an existing run.

    Raises
    ------
    SettingsError
        A run exists but `resume` is False; or no run, or a different one, exists but `resume` is True; or the folder cannot be written
        to, or other files would be overwritten.
    """

    def __init__(self, path: str | Path, comm: object, settings: Settings, text: np.ndarray, name: str, resume: bool):
        self.path, self.comm, self.resume = Path(path), comm, resume
        self.checkpoint = self.path / "checkpoint"
        call_on_rank0(comm, lambda: self._prepare(settings, text, name), SettingsError)

    def _prepare(self, settings: Settings, text: np.ndarray, name: str) -> str:
        notes, there = self.path / "run.json", (self.checkpoint / "index.json").exists()
        own = {key: getattr(settings, key) for key in RESUME_FIELDS} | {"text": name, "sha256": hashlib.sha256(text).hexdigest()}
        if there and not self.resume:
            raise SettingsError(f"{self.path} already contains a run: continue it with --resume, or choose another folder with --out.")
        if self.resume and not there:
            raise SettingsError(
                f"there is no checkpoint in {self.path} to continue from. Omit --resume, or choose another folder with --out."
            )
        before = self.read_notes(notes)
        if self.resume:
            if before is None:
                raise SettingsError(f"{notes}, which says which run the checkpoint belongs to, is missing.")
            for key in RESUME_FIELDS:
                if before[key] != own[key]:
                    raise SettingsError(
                        f"the run in {self.path} has {key} {before[key]!r}, but this one {own[key]!r}: resume it with the same settings."
                    )
            if before["sha256"] != own["sha256"]:
                raise SettingsError(f"the run in {self.path} was trained on another text ({before['text']}); this one is {name}.")
            return ""
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        if any(self.checkpoint.iterdir()) and before is None:  # the student's `save` would remove files that belong to no checkpoint
            raise SettingsError(f"{self.checkpoint} has files that belong to no run: choose another folder with --out.")
        new = notes.with_suffix(".new")
        new.write_text(json.dumps(own, indent=1))
        os.replace(new, notes)
        return ""

    @staticmethod
    def read_notes(notes: Path) -> dict | None:
        """Read the recorded settings of a run; SettingsError if the file is something else."""
        if not notes.exists():
            return None
        try:
            found = json.loads(notes.read_text())
        except ValueError as error:
            raise SettingsError(f"{notes} cannot be read: {error}.") from None
        if not isinstance(found, dict) or not {*RESUME_FIELDS, "text", "sha256"} <= found.keys():
            raise SettingsError(f"{notes} was not written by this program: choose another folder with --out.")
        return found

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint with the student's `save`.

        Raises
        ------
        CheckpointWriteError
            On a rank that cannot write.
        """
        save = students.get(trainer.functions, "save")
        try:
            save(str(self.checkpoint), trainer.step, full_state.local_shards(trainer), trainer.groups.ordered)
        except Exception as error:
            if type(error).__module__.startswith("course_lib."):  # the rank that caused it reports the error
                raise
            raise CheckpointWriteError(
                f"could not write the checkpoint of step {trainer.step} to {self.checkpoint}: {error_text(error)}."
            ) from error

    def load(self, trainer: Trainer) -> None:
        """Resume from the checkpoint, read with the student's `load`.

        Raises
        ------
        SettingsError
            The checkpoint is damaged, or belongs to another model. All ranks raise it.
        """
        load, wrong = students.get(trainer.functions, "load"), ""
        try:
            step, loaded = load(str(self.checkpoint), trainer.groups.ordered)
            if not isinstance(step, (int, np.integer)) or step < 0:
                wrong = f"its step is {step!r}, not a number of steps."
        except (ValueError, OSError, TypeError, KeyError) as error:
            wrong = error_text(error)
        problem = first_nonempty(self.comm, wrong)
        if problem:
            raise SettingsError(f"the checkpoint in {self.path} cannot be read: {problem}")
        try:
            full_state.restore(trainer, step, loaded)
        except full_state.CheckpointMismatch as error:
            raise SettingsError(str(error)) from None
