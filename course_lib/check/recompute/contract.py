"""Limits of part 32's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import NO_COMMUNICATOR, WITHOUT_COMMUNICATOR, Limit

NO_CALLS = Limit("checkpoint", "It calls no collective itself.")
HELD = Limit("checkpoint", "Until then, it holds only `inputs`.")
# Right answers hold up to 0.7 more than computed; wrong ones at least 3.
SPARE_ARRAYS = Limit("checkpoint", "A step holds at most {} arrays more than `peak_memory` says.", 2)
TIMES_BEST = Limit("segments", "extra_seconds(costs, ranges) is at most {:.0%} above the least.", 0.01)
SECONDS = Limit("segments", "A call takes at most {:.0f} s.", 20)

NUMBERS = "it is given numbers"
NOT_DRAWN = {
    "checkpoint": {
        "special values": "values that a narrower dtype cannot hold are drawn; the function passes others on",
        "many ranks": NO_COMMUNICATOR,
        "same ranks twice": NO_COMMUNICATOR,
    },
    "segments": {
        "dtypes": NUMBERS,
        "special values": NUMBERS,
        "layouts": NUMBERS,
        **WITHOUT_COMMUNICATOR,
        "results": "its list is used before it is called again",
    },
}
