"""Limits of part 26's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import Limit

GATHER = Limit(
    "FlatShard",
    "Unless `whole` is there, start one all-gather of `shard`; return immediately.",
)
REDUCE = Limit("FlatShard", "It is one reduce-scatter of the flat array.")
NO_OTHER_CALLS = Limit("FlatShard", "Nothing but these two calls `comm`.")
SPARE = Limit(
    "FlatShard",
    "Besides `shard` and `whole`, it keeps at most {:.1%} of the flat array's bytes.",
    1 / 8,
)
_EXCHANGES = "Forward and backward gather each shard at most once each; backward reduces each at most once, if `sync` is True."
EXCHANGES = Limit("FullyShardedDataParallel", _EXCHANGES)
# Blocks: isolated, right answers hold up to 4.4 in a step, and those that keep two more at least 5.2.
_HELD = (
    "Besides shards and their gradients, a rank holds at most {step} blocks in a step, "
    "{forward} without gradients, {between} between steps."
)
HELD_IN_A_STEP = Limit(
    "FullyShardedDataParallel",
    _HELD.format(step="{}", forward=2.6, between=0.75),
    4.8,
)
HELD_IN_FORWARD = Limit(
    "FullyShardedDataParallel",
    _HELD.format(step=4.8, forward="{}", between=0.75),
    2.6,
)
HELD_BETWEEN_STEPS = Limit(
    "FullyShardedDataParallel",
    _HELD.format(step=4.8, forward=2.6, between="{}"),
    0.75,
)
CLIP_BYTES = Limit(
    "FullyShardedDataParallel",
    "Send at most {} bytes for each shard, in at most 2 calls for each.",
    64,
)
CLIP_CALLS = Limit(
    "FullyShardedDataParallel",
    "Send at most 64 bytes for each shard, in at most {} calls for each.",
    2,
)

ANY_NUMBER = "the collectives are the same for any number of ranks"
NOT_DRAWN = {
    "FlatShard": {"many ranks": ANY_NUMBER},
    "FullyShardedDataParallel": {
        "special values": "it passes values on to the module; norms of 0 and no gradients are drawn",
        "layouts": "it passes arrays on to the module",
        "many ranks": ANY_NUMBER,
        "arguments": "the module computes with them",
        "results": "the module's outputs and gradients come from autograd",
    },
}
