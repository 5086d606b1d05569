"""Functions that the check of part 27's `save` and `load` runs on the ranks; see `checkpoint.check`."""

from __future__ import annotations

import os
import shutil
import tempfile

from safetensors import numpy

from course_lib.check.cases.layouts import arrange
from course_lib.check.checkpoint.file_tracer import FileTracer, read_folder
from course_lib.engine.namespace import student


def rank_folder(name):
    """Path of this rank's folder of this name."""
    return os.path.join(os.path.realpath(tempfile.gettempdir()), name)


def remove_folder(name):
    """Remove a rank's folder."""
    shutil.rmtree(rank_folder(name), ignore_errors=True)


def write_folder(name, files):
    """Create a folder with exactly these files."""
    os.makedirs(rank_folder(name))
    for file, content in files.items():
        if file.endswith("/"):
            os.mkdir(os.path.join(rank_folder(name), file))
            continue
        with open(os.path.join(rank_folder(name), file), "wb") as opened:
            opened.write(content.tobytes())


def read_own_folder(name):
    """Read the files of a rank's folder."""
    return read_folder(rank_folder(name))


def call_save(name, step, shards, place, layout="C", idle=False):
    """Call save and return the shards after the call. Idle ranks take no part while the others save."""
    everyone, save = student("everyone"), student("save")
    comm = everyone.Split(color=place[0], key=place[1])
    mine, given = {key: arrange(array, layout) for key, array in shards.items()}, numpy.serialize_file

    def serialize_file(data, filename, *more, **named):
        open(filename, "ab").close()  # other threads run while this blocks; safetensors would hold the GIL
        return given(data, filename, *more, **named)

    try:
        numpy.serialize_file = serialize_file
        if not idle:
            save(rank_folder(name), step, mine, comm)
    finally:
        numpy.serialize_file = given
    return mine


def call_save_traced(name, step, shards, place, layout="C", idle=False, **how):
    """Call save and trace it from inside, where it is not observed from outside; `how` as for `FileTracer`.

    Returns the states, the shards after the call, the problems, the names written and removed, the number of lines executed, and the
    time at which save returned, on the clock of the states.
    """
    everyone, save = student("everyone"), student("save")
    comm = everyone.Split(color=place[0], key=place[1])
    if idle:
        return [], shards, [], [], [], 0, None
    mine = {key: arrange(array, layout) for key, array in shards.items()}
    watch = FileTracer(rank_folder(name), **how)
    watch.run(save, rank_folder(name), step, mine, comm)
    return watch.states, mine, watch.problems, sorted(watch.wrote), sorted(watch.removed), watch.lines, watch.returned


def call_load(name, place, idle=False, twice=False):
    """Call load; with `twice`, once more on a second communicator with the same ranks, after its arrays have been overwritten."""
    everyone, load = student("everyone"), student("load")
    comm = everyone.Split(color=place[0], key=place[1])
    other = everyone.Split(color=place[0], key=place[1])
    if idle:
        return None
    loaded = load(rank_folder(name), comm)
    if not twice:
        return loaded
    for array in loaded[1].values():
        if array.flags.writeable:
            array[...] = 77
    return load(rank_folder(name), other)
