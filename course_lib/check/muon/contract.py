"""Limits of part 36's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import NO_COMMUNICATOR, WITHOUT_COMMUNICATOR, Limit

PRODUCTS = Limit(
    "newton_schulz",
    "For a matrix of 2,000 rows or columns and at most 4 of the other, it holds at most {:,} bytes at a time.",
    4 << 20,
)
BALANCE = Limit(
    "owners",
    "In the tests, the busiest rank has at most {}% more FLOP than in the best choice known.",
    10,
)
SECONDS = Limit("owners", "A call takes at most {} seconds.", 4)
SILENT = Limit("owners", "Each matrix's owner: the same on all ranks, without communication.")
BYTES = Limit(
    "ShardedMuon",
    "In a step, self.adam's included, a rank sends at most twice the bytes of its gradients of matrices and others, "
    "three times if mesh.tp > 1.",
)
WITHIN = Limit("ShardedMuon", "It calls no ranks outside mesh.comm.")
KEPT = Limit(
    "ShardedMuon",
    "Between steps, it keeps `velocity`, of the matrices' dtype, and no other large arrays.",
)

NUMBERS = "it is given numbers, and returns numbers"
NOT_DRAWN = {
    "newton_schulz": WITHOUT_COMMUNICATOR,
    "owners": {
        **{kind: NUMBERS for kind in ("dtypes", "special values", "layouts", "results")},
        "group order": NO_COMMUNICATOR,
        "same ranks twice": NO_COMMUNICATOR,
    },
    "ShardedMuon": {
        "layouts": "optimizers' gradients are in C order",
        "many ranks": "a step is the same for any number of ranks",
    },
}
