"""Limits of part 30's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import Limit

STEPS = {
    limit.exercise: limit
    for limit in (
        Limit("ring_reduce_scatter", "In each of n - 1 steps, a rank sends one piece to the next rank, and gets one."),
        Limit("ring_all_gather", "In each of n - 1 steps, a rank sends one part to the next rank, and gets one."),
        Limit(
            "ring_all_reduce",
            "A rank sends 2 (n - 1) messages to its neighbors, each of ``ceil(x.size / n)`` elements at most.",
        ),
        Limit(
            "tree_broadcast",
            "Each rank but the root gets one message, the whole array, after at most ``ceil(log2(n))`` steps.",
        ),
        Limit(
            "pairwise_all_to_all",
            "n - 1 steps: in each, every rank sends one row, and no two send to the same rank; nobody sends to itself.",
        ),
    )
}
NO_COLLECTIVES = {name: Limit(name, "It calls no collective.") for name in STEPS}

FOUR_NUMBERS = "it is given four numbers, and returns a text"
NOT_DRAWN = {
    **{name: {} for name in STEPS},
    "choose": dict.fromkeys(
        (
            "dtypes",
            "special values",
            "layouts",
            "group order",
            "same ranks twice",
            "arguments",
            "results",
            "calls",
        ),
        FOUR_NUMBERS,
    ),
}
