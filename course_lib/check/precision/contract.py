"""Limits of part 31's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import Limit

GATHER_BYTES = Limit(
    "gather_as",
    "In a call, a rank sends what an all-gather of the rounded shards sends, and at most {} bytes besides.",
    64,
)
GATHER_CALLS = Limit("gather_as", "It makes at most {} calls of ``comm``.", 4)
REDUCE_BYTES = Limit(
    "reduce_as",
    "In a call, a rank sends what an all-to-all of the rounded gradients sends, and at most {} bytes besides.",
    64,
)
REDUCE_CALLS = Limit("reduce_as", "It makes at most {} calls of ``comm``.", 4)
STEP_BYTES = Limit("LossScaler", "In a step, a rank sends at most {} bytes along each axis, in at most 4 calls.", 256)
STEP_CALLS = Limit("LossScaler", "In a step, a rank sends at most 256 bytes along each axis, in at most {} calls.", 4)

ONE_DTYPE = "the arrays that it is given are float32"
COMMUNICATOR = "the communicator refuses other layouts with a sentence"
NOT_DRAWN = {
    "gather_as": {"many ranks": "what it does with n does not depend on it"},
    "reduce_as": {"many ranks": "what it does with n does not depend on it"},
    "LossScaler": {
        "dtypes": ONE_DTYPE,
        "layouts": "optimizers' gradients are in C order",
        "many ranks": "a grid of 17 ranks has no axis that four ranks do not have",
        "same ranks twice": "a scaler has its groups from the start",
    },
}
