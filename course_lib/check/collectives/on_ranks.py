"""Functions that the checks of part 30's collectives run on the ranks; see `collectives.check`."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from course_lib.check.cases.virtual_group import run_virtually
from course_lib.collectives import Communicator
from course_lib.collectives.instrumentation.recording import recording
from course_lib.engine.namespace import student
from course_lib.trace.recorder import Event


def call_collective(function, x, more, place, watched):
    """Call the student's function on this rank's group, which has this color and key.

    Returns
    -------
    tuple
        The result; x after the call; what the result is when the caller has overwritten x; and if
        `watched`, the messages sent and the collectives, in the form of `Ranks.messages`.
    """
    color, key = place
    comm = Communicator().Split(color=color, key=key)
    with recording() if watched else nullcontext() as recorder:
        answer = _call(function, x, comm, more)
    messages = []
    for kind, name, *_, nbytes, peer, _, _ in (Event(*fields) for fields in (recorder.events if watched else ())):
        if kind.endswith("send"):
            messages.append(("to", peer, nbytes))
        elif kind.endswith("collective"):
            messages.append((name, -1, 0))
    return (*answer, messages)


def call_virtually(function, arrays, more, seed):
    """Call the student's function on a virtual rank for each array; see `run_virtually`.

    The result of each is that of `call_collective`, without messages.
    """
    return run_virtually(len(arrays), lambda comm, rank: _call(function, arrays[rank].copy(), comm, more), seed)


def _call(function, x, comm, more):
    result = student(function)(x, comm, *more)
    returned = result.copy() if isinstance(result, np.ndarray) else result
    after = x.copy()
    x[...] = 77  # also what is a view of it
    return returned, after, result


def choose_often(cases):
    """Return what the student's `choose` says for each case."""
    return [student("choose")(*case) for case in cases]
