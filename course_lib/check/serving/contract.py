"""Limits of part 34's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import WITHOUT_COMMUNICATOR, Limit

CACHE_BYTES = Limit("PagedCache", "Besides `data`, a cache holds at most {} MB.", 2)
MATRICES = Limit(
    "prefill",
    "For all tokens at once, call each block's methods, and logits, once.",
)
FORWARD_BYTES = Limit(
    "prefill",
    "For each block, a rank sends two all-reduces of x (and {} bytes), in 2 calls of each "
    "collective at most, or 4 n messages, without a barrier.",
    64,
)
FORWARD_CALLS = Limit(
    "prefill",
    "For each block, a rank sends two all-reduces of x (and 64 bytes), in {} calls of each "
    "collective at most, or 4 n messages, without a barrier.",
    2,
)
WORD_BYTES = Limit("next_token", "A rank sends at most {} bytes for each text and rank, in at most 2 n calls in all.", 64)
WORD_CALLS = Limit("next_token", "A rank sends at most 64 bytes for each text and rank, in at most {} n calls in all.", 2)
OLDEST = Limit("Scheduler", "Each batch has the oldest text that is not done.")
ORDER = Limit(
    "Scheduler", "The same calls give the same batches, in the same order, and 0.9 of the tokens per second of the policy above, or more."
)
SPEED = Limit(
    "Scheduler",
    "The same calls give the same batches, in the same order, and {} of the tokens per second of the policy above, or more.",
    0.9,
)
HANDED_BYTES = Limit(
    "hand_over",
    "For each rank in target, a rank sends at most {:,} bytes more, in 200 calls at most.",
    1000,
)
HANDED_CALLS = Limit("hand_over", "For each rank in target, a rank sends at most 1,000 bytes more, in {} calls at most.", 200)

NO_ARRAYS = "its arguments are numbers, texts and a cache"
FORWARD = {
    "special values": "what a model makes of NaN or infinities is not stated",
    "layouts": "the only array is the cache's, which a PagedCache makes",
    "many ranks": "what it does with n does not depend on it",
}
NOT_DRAWN = {
    "PagedCache": {
        **WITHOUT_COMMUNICATOR,
        "special values": "its methods take numbers of texts and of tokens",
        "layouts": NO_ARRAYS,
        "arguments": "its arguments are numbers and a tuple, which no call can change",
    },
    "prefill": FORWARD,
    "decode": FORWARD,
    "next_token": {"many ranks": "what it does with n does not depend on it"},
    "Scheduler": {
        **WITHOUT_COMMUNICATOR,
        "dtypes": NO_ARRAYS,
        "special values": NO_ARRAYS,
        "layouts": NO_ARRAYS,
        "results": "a batch is over before the next call",
    },
    "hand_over": {
        "layouts": "the only array is the cache's, which a PagedCache makes",
        "many ranks": "what it does with a target does not depend on their number",
    },
}
