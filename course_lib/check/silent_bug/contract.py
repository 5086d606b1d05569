"""Limits of part 33's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import NO_COMMUNICATOR, WITHOUT_COMMUNICATOR, Limit

ROUNDING = Limit(
    "close_enough",
    "Rounding explains at most {} * sqrt(terms) epsilons of the largest value, or `terms` epsilons, if these are more.",
    10,
)
DIGEST_BYTES = Limit(
    "same_on",
    "A rank sends at most {:,} bytes to each other rank of the group, in at most 10 calls of its communicator, and calls no other ranks.",
    1024,
)
DIGEST_CALLS = Limit(
    "same_on",
    "A rank sends at most 1,024 bytes to each other rank of the group, in at most {} calls of its communicator, and calls no other ranks.",
    10,
)
ONE_AT_A_TIME = Limit(
    "accumulate",
    "Call ``loss_and_backward`` once for each micro-batch, with it alone, and no other ranks.",
)
SUM_CALLS = Limit("own_gradients", "Make at most {} calls of ``comm``.", 12)

NO_ARRAYS = "it returns no arrays"
ANY_GRID = "a larger grid has no axis and no fault that one of four ranks does not have"
NOT_DRAWN = {
    "close_enough": {
        **WITHOUT_COMMUNICATOR,
        "results": NO_ARRAYS,
    },
    "same_on": {
        "many ranks": "what it does with a digest does not depend on the number of ranks",
        "results": NO_ARRAYS,
    },
    "compare_with_one_rank": {
        "many ranks": ANY_GRID,
        "results": NO_ARRAYS,
        "layouts": "gradients that a step returns are in C order",
        "calls": "it may exchange on its mesh whatever it needs",
    },
    "accumulate": {
        "group order": NO_COMMUNICATOR,
        "group sizes": NO_COMMUNICATOR,
        "many ranks": NO_COMMUNICATOR,
        "same ranks twice": NO_COMMUNICATOR,
        "results": "gradients belong to the model, and the next call replaces them",
        "special values": "texts are token numbers",
        "layouts": "texts are only passed on to the model",
    },
    "own_gradients": {"many ranks": "a sum over more ranks is the same sum"},
}
