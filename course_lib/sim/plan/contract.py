"""Limits of part 29's hidden tests, and the kinds of cases that do not apply."""

from course_lib.check.limits import WITHOUT_COMMUNICATOR, Limit

# Of the time of a step, relative to the best one.
MEMORY_CASES = Limit("plan", "Where memory decides, a step may take {} times as long as the best.", 1.5)
FULL_POINTS = Limit("plan", "Elsewhere, you get full points up to {} times, and none from 1.08 times on.", 1.04)
ZERO_POINTS = Limit("plan", "Elsewhere, you get full points up to 1.04 times, and none from {} times on.", 1.08)
# As for grading on one's own machine; elsewhere, the grading configuration sets it.
SEARCH_SECONDS = Limit("plan", "A search is stopped after {:.0f} seconds.", 30)

NUMBERS = "it is given a model and a cluster"
NOT_DRAWN = {
    "plan": {
        "dtypes": NUMBERS,
        "special values": NUMBERS,
        "layouts": NUMBERS,
        **WITHOUT_COMMUNICATOR,
        "arguments": "each call is given a model and a cluster of its own",
        "results": "its configuration is used before it is called again",
    },
}
