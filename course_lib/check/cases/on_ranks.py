"""Calls of an exercise's function, one after the other, as a rank makes them; see `repetition`."""

from __future__ import annotations

import numpy as np

from course_lib.check.cases.layouts import arrange
from course_lib.engine.namespace import student

GROUP = "<group>"  # stands for the call's communicator among its arguments


def call_in_turn(function, calls, groups, reuse):
    """Call the student's function several times.

    Parameters
    ----------
    function : str
    calls : list of dict
        "arguments": list, in which `GROUP` stands for the communicator; "keywords": dict;
        "group": which of the communicators; "layout": of all arrays, see `layouts`.
    groups : list of (int, int)
        Color and key of this rank in each communicator; they are made before the first call.
    reuse : bool
        Whether the caller overwrites its arrays after each call, as one with a buffer does.

    Returns
    -------
    list of (object, list, object)
        For each call: the result, the arguments that are arrays as they were after the call, and
        what the result is after the last call.
    """
    from course_lib.collectives import Communicator

    everyone = Communicator()  # not the rank's own name for it, which a cell may have changed
    comms = [everyone.Split(color=color, key=key) for color, key in groups]
    made = []
    for call in calls:
        arguments = [_prepared(value, call, comms) for value in call["arguments"]]
        keywords = {name: _prepared(value, call, comms) for name, value in call["keywords"].items()}
        result = student(function)(*arguments, **keywords)
        given = [value for value in (*arguments, *keywords.values()) if isinstance(value, np.ndarray)]
        made.append((_copied(result), [value.copy() for value in given], result))
        for value in given:
            if reuse and value.flags.writeable:
                value[...] = 77  # also what is a view of it, or of which it is a view
    return [(result, given, _copied(later)) for result, given, later in made]


def _prepared(value: object, call: dict, comms: list) -> object:
    """Return an argument as the function is given it."""
    if isinstance(value, str) and value == GROUP:
        return comms[call["group"]]
    return arrange(value, call["layout"]) if isinstance(value, np.ndarray) else value


def _copied(result: object) -> object:
    """Copy the arrays in a result, which later calls may change."""
    if isinstance(result, (tuple, list)):
        return [_copied(value) for value in result]
    if isinstance(result, dict):
        return {name: _copied(value) for name, value in result.items()}
    return result.copy() if isinstance(result, np.ndarray) else result
