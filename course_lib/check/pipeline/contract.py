"""Limits of the hidden tests of parts 25 and 35, and the kinds of cases that do not apply."""

from course_lib.check.limits import WITHOUT_COMMUNICATOR, Limit

GPIPE = "gpipe_step"
ONE_FORWARD_ONE_BACKWARD = "one_forward_one_backward_step"
ZB_H1 = "zb_h1_step"
STEPS = (GPIPE, ONE_FORWARD_ONE_BACKWARD, ZB_H1)
# Where these stand: 1F1B's docstring says that it is otherwise like `gpipe_step`.
STATED = {GPIPE: GPIPE, ONE_FORWARD_ONE_BACKWARD: GPIPE, ZB_H1: ZB_H1}

BYTES_BESIDES = 32  # for each micro-batch
STEP_BYTES = {
    step: Limit(
        name,
        "A rank sends each result once, and at most {} bytes for each micro-batch besides.",
        BYTES_BESIDES,
    )
    for step, name in STATED.items()
}
STEP_MESSAGES = {
    step: Limit(name, "It sends at most {} messages for each micro-batch, and calls no collective.", 8) for step, name in STATED.items()
}
AT_ONCE = {
    step: Limit(
        name,
        "It sends each result before its next piece of work, and waits only for what that needs.",
    )
    for step, name in STATED.items()
}
REQUESTS = {step: Limit(name, "In the end, it has waited for every request.") for step, name in STATED.items()}
FLIGHT_MEMORY = Limit(
    ONE_FORWARD_ONE_BACKWARD,
    "What is sent may be held to the end, and {:.0%} of what forward keeps of a micro-batch.",
    0.6,
)
ORDER_MEMORY = Limit(
    ZB_H1,
    "What is sent and received may be held to the end, and {:.0%} of what F keeps of a micro-batch.",
    0.3,
)
TICKS = Limit(
    ZB_H1,
    "If F, B and W take one tick each and messages none, the step takes at most "
    "3 m + p - 1 ticks; with m < p, 2 (m + p - 1) for all F and B, and 1 for the last W.",
)
HELD = Limit(
    ZB_H1,
    "A rank holds a micro-batch from its F to its W, and never more than p of them.",
)
SAME_ORDER = Limit(ZB_H1, "The order does not depend on the time that anything takes.")
KEPT = Limit(
    "backward_input",
    "Keep each product and the gradient of its result, and at most {:.0%} more.",
    0.1,
)

SUMS = "a sum passes NaN and infinities on, however it is computed"
STAGES = "it only passes on what stages compute"
NUMBER = "it returns a number"
FOUR_RANKS = "a pipeline of four ranks has a first, a second, a last but one and a last rank"
_STEP = {"special values": STAGES, "results": NUMBER, "many ranks": FOUR_RANKS}
_HALF = {
    "special values": SUMS,
    **WITHOUT_COMMUNICATOR,
}
NOT_DRAWN = {
    **dict.fromkeys(STEPS, _STEP),
    "backward_input": _HALF,
    "backward_weight": {**_HALF, "results": "it returns nothing"},
}
