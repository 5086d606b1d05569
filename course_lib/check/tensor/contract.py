"""Limits of the hidden tests of parts 21 and 22, and the kinds of cases that do not apply."""

from course_lib.check.limits import Limit

# Of each operator a sentence; its two numbers are bytes and calls.
_OPERATORS = {
    "copy_to_group": "Forward sends nothing; backward sends at most one all-reduce of `x` in float64 "
    "plus {bytes} bytes, in at most {calls} calls.",
    "reduce_from_group": "Send at most an all-reduce in float64 plus {bytes} bytes, in at most {calls} calls.",
    "gather_sequence": "Send at most an all-gather and a reduce-scatter in float64, "
    "plus {bytes} bytes each, in at most {calls} calls each.",
    "scatter_sequence": "Send at most a reduce-scatter and an all-gather in float64, "
    "plus {bytes} bytes each, in at most {calls} calls each.",
}
BYTES = {name: Limit(name, sentence.format(bytes="{}", calls=8), 64) for name, sentence in _OPERATORS.items()}
CALLS = {name: Limit(name, sentence.format(bytes=64, calls="{}"), 8) for name, sentence in _OPERATORS.items()}
IDENTITY = {
    "copy_to_group": BYTES["copy_to_group"],
    "reduce_from_group": Limit(
        "reduce_from_group",
        "In backward, the gradient is replicated, too, and it is the gradient of each rank's term: nothing is sent.",
    ),
}
LOSS_NUMBERS = Limit(
    "vocab_parallel_cross_entropy",
    "It sends at most one all-reduce of ``2 * batch * tokens + {}`` float64 numbers, in at most 8 calls.",
    16,
)
LOSS_CALLS = Limit(
    "vocab_parallel_cross_entropy",
    "It sends at most one all-reduce of ``2 * batch * tokens + 16`` float64 numbers, in at most {} calls.",
    8,
)
LOSS_BACKWARD = Limit(
    "vocab_parallel_cross_entropy",
    "Backward sends nothing, and may run after the forward of other losses.",
)
NORM_BYTES = Limit(
    "reduce_norm_gradients",
    "Send at most one all-reduce of these in float64 plus {} bytes, in at most 2 calls for each.",
    64,
)
NORM_CALLS = Limit(
    "reduce_norm_gradients",
    "Send at most one all-reduce of these in float64 plus 64 bytes, in at most {} calls for each.",
    2,
)
CLIP_BYTES = Limit("clip_gradients", "{} bytes in 8 calls are enough.", 256)
CLIP_CALLS = Limit("clip_gradients", "256 bytes in {} calls are enough.", 8)

SUMS = "a sum passes NaN and infinities on, however it is computed"
ANY_NUMBER = "the collectives are the same for any number of ranks"
_OPERATOR = {"many ranks": ANY_NUMBER}
_MODULE = {
    "layouts": "gradients of parameters are products and sums, in C order",
    "many ranks": ANY_NUMBER,
}
NOT_DRAWN = {
    "copy_to_group": _OPERATOR,
    "reduce_from_group": _OPERATOR,
    "gather_sequence": _OPERATOR,
    "scatter_sequence": _OPERATOR,
    "vocab_parallel_cross_entropy": _OPERATOR,
    "reduce_norm_gradients": {"special values": SUMS, **_MODULE},
    "clip_gradients": {"special values": "norms of 0 and on both sides of the limit are drawn", **_MODULE},
}
