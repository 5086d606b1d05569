"""Limits of the hidden tests of parts 08 and 09, and the kinds of cases that do not apply."""

from course_lib.check.limits import NO_COMMUNICATOR, Limit

FORWARD_BYTES = Limit(
    "ZeroDPStage3FCLayer",
    "`forward` sends at most what one all-gather of each shard sends, and {} bytes.",
    64,
)
BACKWARD_BYTES = Limit(
    "ZeroDPStage3FCLayer",
    "`backward` sends at most twice as much: a gather, and a reduce-scatter of each gradient.",
)
KEPT_BYTES = Limit(
    "ZeroDPStage3FCLayer",
    "Between calls, a rank keeps its shards, their gradients and `x`; {:.0%} of the whole layer may come on top.",
    0.25,
)
STEP_BYTES = Limit("ZeroDPAdam", "A step sends {} bytes.", 0)

MESSAGE = "the bytes are limited, and the calls need not be"
NOT_DRAWN = {
    "ZeroDPStage3FCLayer": {
        "special values": "products and sums pass them on, however they are computed",
        "layouts": "samples and gradients come from other layers, in C order",
        "group order": "`comm` has the data parallel ranks in order",
        "many ranks": "groups of one to eight ranks are drawn",
        "same ranks twice": "a layer has one communicator",
        "calls": MESSAGE,
    },
    "ZeroDPAdam": {
        "special values": "gradients of zero are drawn; others pass through",
        "layouts": "shards are flat arrays in C order",
        "group order": NO_COMMUNICATOR,
        "group sizes": NO_COMMUNICATOR,
        "many ranks": NO_COMMUNICATOR,
        "same ranks twice": NO_COMMUNICATOR,
        "results": "a step changes the layers' own arrays",
    },
}
