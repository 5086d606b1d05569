"""Limits of part 24's hidden tests, and the kinds of cases that do not apply."""

from course_lib.check.limits import NO_COMMUNICATOR, Limit

NOTHING_SENT = Limit("route", "Nothing is sent.")
SLOT_BYTES = Limit(
    "dispatch",
    "A rank sends at most its slots, {} bytes for each of them, and 64 for each rank, once in"
    " forward and once in backward, each time in at most 16 calls.",
    8,
)
RANK_BYTES = Limit(
    "dispatch",
    "A rank sends at most its slots, 8 bytes for each of them, and {} for each rank, once in "
    "forward and once in backward, each time in at most 16 calls.",
    64,
)
CALLS = Limit(
    "dispatch",
    "A rank sends at most its slots, 8 bytes for each of them, and 64 for each rank, once in "
    "forward and once in backward, each time in at most {} calls.",
    16,
)
AS_DISPATCH = Limit("combine", "It sends as much as `dispatch`, in as many calls.")

_EXCHANGE = {
    "special values": "`into_slots` and `from_slots`, which are given, add and multiply",
    "layouts": "tokens come from other layers, in C order",
    "many ranks": "the exchange is the same for any number of ranks",
}
NOT_DRAWN = {
    "route": {
        "special values": "ties are drawn; NaN and infinities are no logits",
        "layouts": "logits come from a product, in C order",
        "group order": NO_COMMUNICATOR,
        "group sizes": NO_COMMUNICATOR,
        "many ranks": NO_COMMUNICATOR,
        "same ranks twice": NO_COMMUNICATOR,
    },
    "dispatch": _EXCHANGE,
    "combine": _EXCHANGE,
}
