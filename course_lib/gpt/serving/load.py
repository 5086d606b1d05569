"""Load a tensor parallel rank's part of a model from a checkpoint of `python -m course_lib.gpt`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from course_lib import students
from course_lib.gpt.broadcast_text import call_on_rank0, error_text, first_nonempty
from course_lib.gpt.model import Sizes
from course_lib.gpt.serving.model import ServingModel, draw_weights, split_dimension
from course_lib.gpt.settings import VOCABULARY_SIZE, SettingsError
from course_lib.gpt.training.full_state import STATE_KINDS, gather_shards
from course_lib.gpt.training.run_directory import RunDirectory


def load_model(folder: str | Path, functions: object, comm: object) -> tuple[ServingModel, int]:
    """Load a model with the student's `load`, and split it over the ranks of comm; collective.

    Parameters
    ----------
    folder : str or Path
        A run's, as `python -m course_lib.gpt --out` writes it.
    functions : object
        Has the student's `load` (part 27) as an attribute.
    comm : Communicator

    Returns
    -------
    model : ServingModel
    step : int
        Of the checkpoint.

    Raises
    ------
    SettingsError
        There is no run, or it cannot be served on this number of ranks. All ranks raise it.
    """
    load, folder, n = students.get(functions, "load"), Path(folder), comm.Get_size()
    notes = json.loads(call_on_rank0(comm, lambda: _read_notes(folder), SettingsError))
    sizes = Sizes(VOCABULARY_SIZE, *(notes[name] for name in ("width", "heads", "depth", "length")))
    if notes["experts"]:
        raise SettingsError(
            f"the model in {folder} has {notes['experts']} experts in each block; only models without experts can be served."
        )
    if sizes.heads % n or sizes.vocabulary % n:
        raise SettingsError(
            f"{n} ranks cannot share {sizes.heads} heads and {sizes.vocabulary} words equally: choose another number with mpiexec -n."
        )
    weights = draw_weights(sizes)  # for their names and shapes
    step, parts = _load_parts(load, folder, comm, {name: whole.shape for name, whole in weights.items()})
    for name, whole in weights.items():
        dim = split_dimension(name, sizes.depth) or 0
        flat = gather_shards(comm, parts.pop(name), whole.size).reshape(np.moveaxis(whole, dim, 0).shape)
        own = flat if split_dimension(name, sizes.depth) is None else np.split(flat, n)[comm.Get_rank()]
        weights[name] = np.ascontiguousarray(np.moveaxis(own, 0, dim))
    return ServingModel(sizes, weights, n, comm.Get_rank()), step


def _read_notes(folder: Path) -> str:
    """Settings of a run, as JSON; SettingsError if there is none."""
    if not (folder / "checkpoint" / "index.json").exists():
        raise SettingsError(
            f"there is no checkpoint in {folder}. Train a model first: mpiexec -n 4 python -m course_lib.gpt --tp 2 --out {folder}"
        )
    notes = RunDirectory.read_notes(folder / "run.json")
    if notes is None:
        raise SettingsError(f"{folder / 'run.json'}, which says which model the checkpoint belongs to, is missing.")
    return json.dumps(notes)


def _load_parts(load, folder: Path, comm: object, shapes: dict[str, tuple[int, ...]]) -> tuple[int, dict[str, np.ndarray]]:
    """This rank's parts of the parameters, flat and by name; collective."""
    n, wrong, step, found = comm.Get_size(), "", 0, {}
    try:
        step, loaded = load(str(folder / "checkpoint"), comm)
        for name, shape in shapes.items():
            found[name] = np.asarray(loaded[f"{STATE_KINDS[0]}/{name}"], np.float32)
            each = -(-int(np.prod(shape)) // n)
            mine = max(min((comm.Get_rank() + 1) * each, int(np.prod(shape))) - comm.Get_rank() * each, 0)
            if found[name].shape != (mine,):
                wrong = f"rank {comm.Get_rank()} of {n} must get {mine} numbers of {name}; load returned {found[name].shape}."
    except KeyError as error:
        wrong = f"it has no {error.args[0]}, so it is from another model."
    except (ValueError, OSError, TypeError) as error:
        wrong = error_text(error)
    if wrong := first_nonempty(comm, wrong):
        raise SettingsError(f"the checkpoint in {folder} cannot be read: {wrong}")
    return int(step), found
