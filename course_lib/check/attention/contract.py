"""Limits of part 23's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import NO_COMMUNICATOR, WITHOUT_COMMUNICATOR, Limit

NO_COLLECTIVES = Limit(
    "ring_attention",
    "Use messages, not collectives, all in the dtype of q: forward sends K and V n - 1 times;"
    " backward sends them n - 1 times again, and dK and dV n times, and 64 bytes may come on "
    "top.",
)
SENT_BYTES = Limit(
    "ring_attention",
    "Use messages, not collectives, all in the dtype of q: forward sends K and V n - 1 times;"
    " backward sends them n - 1 times again, and dK and dV n times, and {} bytes may come on "
    "top.",
    64,
)
SCORES = Limit(
    "ring_attention",
    "Hold one block of scores at a time, in at most {} arrays of its size.",
    6,
)
KEYS = Limit(
    "ring_attention",
    "Of arrays of k's size, hold at most {} besides the arguments, and keep at most 4 for backward, however many ranks there are.",
    10,
)
KEPT = Limit(
    "ring_attention",
    "Of arrays of k's size, hold at most 10 besides the arguments, and keep at most {} for backward, however many ranks there are.",
    4,
)
ANY_SIZE = Limit(
    "ring_attention",
    "Of arrays of k's size, hold at most 10 besides the arguments, and keep at most 4 for backward, however many ranks there are.",
)

NOT_DRAWN = {
    "merge": {"layouts": "its arrays come from products, in C order", **WITHOUT_COMMUNICATOR},
    "zigzag": {
        "dtypes": "it is given numbers",
        "special values": "it is given numbers",
        "layouts": "it is given numbers",
        "arguments": "it is given numbers",
        "results": "it returns numbers",
        "group order": NO_COMMUNICATOR,
        "same ranks twice": NO_COMMUNICATOR,
        "calls": NO_COMMUNICATOR,
    },
    "ring_attention": {
        "special values": "large scores are drawn; others pass through sums",
        "layouts": "the docstring says that its arrays are C-contiguous",
        "many ranks": "a step is the same for any number of ranks",
    },
}
