"""What the check of part 27's `save` and `load` does on a rank. All of it runs there; see `checkpoint`."""

from __future__ import annotations

import os
import shutil
import tempfile

from course_lib.check.checkpoint_watch import Watch, seen


def folder():
    """This rank's folder."""
    return os.path.join(os.path.realpath(tempfile.gettempdir()), f"checkpoint-{os.getuid()}-{os.getpid()}")


def clear():
    """Remove it."""
    shutil.rmtree(folder(), ignore_errors=True)


def lay_out(files):
    """A folder with these files, and no others."""
    clear()
    os.makedirs(folder())
    for name, content in files.items():
        with open(os.path.join(folder(), name), "wb") as file:
            file.write(content.tobytes())


def look():
    """What is in it."""
    return seen(folder())


def saved(step, shards, place, idle=False, **how):
    """Call save, and watch it; `how` as for `Watch`. Ranks that are idle only stand by while the others save.

    Returns the moments, the shards after the call, what must not be, the names written and removed, and how many lines were run.
    """
    comm = everyone.Split(color=place[0], key=place[1])
    if idle:
        return [], shards, [], [], [], 0
    mine = {name: array.copy() for name, array in shards.items()}
    watch = Watch(folder(), **how)
    watch.run(save, folder(), step, mine, comm)
    return watch.states, mine, watch.found, sorted(watch.wrote), sorted(watch.removed), watch.lines


def loaded(place, idle=False):
    """Call load."""
    comm = everyone.Split(color=place[0], key=place[1])
    return None if idle else load(folder(), comm)
