"""Limits of the hidden tests of parts 12 and 15, and the kinds of cases that do not apply."""

from course_lib.check.limits import Limit

OPTIMIZER_BYTES = Limit(
    "DistributedOptimizer",
    "A step sends at most what all-gathers of the gradients send, and {} bytes.",
    64,
)
OPTIMIZER_CALLS = Limit("DistributedOptimizer", "It makes at most {} calls of ``comm`` for a parameter.", 8)

ONE_RANK = "it runs on one rank"
NO_EXCHANGE = "no exchange is needed, and none hurts"
GROUP = "`comm` is the set-up cell's; the check puts groups of any ranks in its place"
COUNT = "it does not depend on the number of ranks"
_ONE_RANK = {kind: ONE_RANK for kind in ("group order", "group sizes", "many ranks", "same ranks twice", "calls")}
NOT_DRAWN = {
    "MLP": {
        "special values": "a product passes them on, however it is computed",
        "layouts": "the loader's arrays are in C order",
        "arguments": "it is given sizes",
        **_ONE_RANK,
    },
    "evaluate": {
        "special values": "large logits are drawn; others are the loss function's",
        "layouts": "the loader makes its arrays",
        "dtypes": "the model and its loss function choose them",
        "results": "it returns numbers",
        **_ONE_RANK,
    },
    "train": {
        "special values": "the loss function's",
        "layouts": "the loader makes its arrays",
        "dtypes": "the model and its loss function choose them",
        "arguments": "it changes the model, as it should",
        "results": "it returns numbers",
        **_ONE_RANK,
    },
    "partition_dataset": {
        "special values": "samples are not looked at",
        "layouts": "samples are not looked at",
        "dtypes": "samples are not looked at",
        "results": "a loader makes its arrays for each batch",
        "many ranks": COUNT,
        "same ranks twice": GROUP,
        "calls": NO_EXCHANGE,
    },
    "broadcast_parameters": {
        "layouts": "a model's arrays are in C order",
        "many ranks": COUNT,
        "same ranks twice": GROUP,
        "arguments": "it changes the model, as it should",
        "calls": "it is called once, before training",
    },
    "DistributedOptimizer": {
        "special values": "a mean passes NaN and infinities on, however it is computed",
        "layouts": "gradients are in C order",
        "many ranks": COUNT,
        "same ranks twice": GROUP,
        "arguments": "it changes the gradients, as it should",
    },
}
