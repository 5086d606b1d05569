"""Limits of part 37's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import Limit

SAME_WEIGHTS = Limit("DiLoCo", "An exchange makes all weights the same, bit for bit.")
EXCHANGE_BYTES = Limit(
    "DiLoCo",
    "In an exchange, as at the start, a rank sends at most what an all-gather of the weights sends, and {:,} bytes besides.",
    1024,
)
EXCHANGE_CALLS = Limit("DiLoCo", "It makes at most {} calls for each parameter, and none between exchanges.", 4)
INNER_CALLS = Limit("DiLoCo", "It makes at most 4 calls for each parameter, and none between exchanges.")

ROUND_MESSAGES = Limit("hear", "Sends each other rank {} message, and calls no collective.", 1)
NO_COLLECTIVE = Limit("hear", "Sends each other rank 1 message, and calls no collective.")
ROUNDS_ONLY = Limit("hear", "Other topics do not arrive.")
KEEPS_LATER = Limit("hear", "Messages of later rounds are kept, also with a TimeoutError.")
AGREE_MESSAGES = Limit(
    "agree",
    "If all propose the same, a rank sends at most {} messages to each other one.",
    3,
)

STEP_BYTES = Limit(
    "FaultTolerantDiLoCo",
    "A step sends the differences once to each other rank, and at most {:,} bytes besides.",
    10_000,
)
REQUESTS = Limit("FaultTolerantDiLoCo", 'A rank that copies nothing sends no "join".')
ANSWERS_ONLY = Limit("FaultTolerantDiLoCo", "Other topics arrive only in answer to one.")
ONE_BY_ONE = Limit(
    "FaultTolerantDiLoCo",
    "The next peer is asked after an answer, or `deadline` seconds.",
)

COPIES = "a messenger copies what it sends"
ONE_MESSENGER = "a group's later messenger replaces the earlier one; each run has its own"
TUPLES = "proposals are tuples of int"
REPLICA = "it is given a replica, which it changes, and which the course makes"
NOT_DRAWN = {
    "DiLoCo": {
        "layouts": "the communicator refuses other layouts with a sentence",
        "arguments": "it is given optimizers and parameters, which it changes",
        "many ranks": "what it does with n does not depend on it",
    },
    "hear": {
        "layouts": COPIES,
        "many ranks": "what it does with n does not depend on it",
    },
    "agree": {
        "dtypes": TUPLES,
        "layouts": TUPLES,
        "arguments": "tuples do not change",
        "results": "tuples do not change",
    },
    "FaultTolerantDiLoCo": {
        "special values": "a replica whose weights are no numbers has failed, and not fallen silent",
        "layouts": REPLICA,
        "arguments": REPLICA,
        "results": REPLICA,
    },
}
