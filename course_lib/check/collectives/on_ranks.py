"""Functions that the checks of part 30's collectives run on the ranks; see `collectives.check`."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from course_lib.collectives.instrumentation.recording import recording
from course_lib.engine.namespace import get_ipython, student
from course_lib.trace.recorder import Event


def make_group(color, key):
    """Make this rank's group, in a request of its own: `Split` is a collective, and the next request must have none."""
    get_ipython().user_ns["trial_group"] = student("everyone").Split(color=color, key=key)


def call_collective(function, x, more, watched):
    """Call the student's function on this rank's group.

    Returns the result, `x` after the call, whether the result shares memory with it, and, if `watched`, the messages sent and the
    collectives, in the form of `Ranks.messages`. A name in `more` that NumPy has stands for NumPy's function.
    """
    more = [getattr(np, value) if isinstance(value, str) else value for value in more]
    with recording() if watched else nullcontext() as recorder:
        out = student(function)(x, student("trial_group"), *more)
    made = []
    for kind, name, *_, nbytes, peer, _, _ in (Event(*fields) for fields in (recorder.events if watched else ())):
        if kind.endswith(("send", "collective")):
            made.append(("to", peer, nbytes) if kind.endswith("send") else (name, -1, 0))
    return out, x, isinstance(out, np.ndarray) and np.shares_memory(out, x), made


def choose_often(cases):
    """Return what the student's `choose` says for each case."""
    return [student("choose")(*case) for case in cases]
