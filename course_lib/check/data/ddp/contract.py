"""Limits of part 14's hidden tests, and the kinds of cases that do not apply to its exercise."""

from course_lib.check.limits import Limit

STEP_BYTES = Limit(
    "MyDP",
    "A step sends what all-reduces of the gradients send, at most {} bytes besides, and calls no Barrier.",
    32,
)

NOT_DRAWN = {
    "MyDP": {
        "layouts": "the model's arrays are in C order",
        "group order": "`comm` is the set-up cell's, and has the ranks in order",
        "many ranks": "a mean over `comm` does not depend on the number of its ranks",
        "same ranks twice": "there is one `comm`",
        "arguments": "the wrapper changes the model's parameters, as it should",
    },
}
