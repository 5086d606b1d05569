"""Kinds of cases that do not apply to the exercises of parts 01 and 02, which have no limits."""

from course_lib.check.limits import NO_COMMUNICATOR

GROUPS = "what it makes are groups: the check calls them, on all grids of up to eight ranks"
NOT_DRAWN = {
    "split_data": {
        "special values": "samples are not looked at",
        "group order": NO_COMMUNICATOR,
        "group sizes": NO_COMMUNICATOR,
        "same ranks twice": NO_COMMUNICATOR,
        "calls": NO_COMMUNICATOR,
        "results": "it may return a view of the training data",
    },
    "get_info": {
        "dtypes": "it is given numbers",
        "special values": "it is given numbers",
        "layouts": "it is given numbers",
        "arguments": "it is given numbers",
        "results": GROUPS,
        "many ranks": GROUPS,
        "calls": "a split is all that it needs, and costs nothing that students count",
    },
}
