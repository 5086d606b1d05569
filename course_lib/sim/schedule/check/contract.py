"""Limits of the hidden tests of parts 17 to 20, and the kinds of cases that do not apply."""

from course_lib.check.limits import NO_COMMUNICATOR, Limit

TIME = {
    loop: Limit(loop, "The step takes at most the time of the target above.")
    for loop in ("part1_training_loop", "part2_training_loop", "part3_training_loop")
}
ZERO_ACTIVATIONS = Limit(
    "part1_training_loop",
    "A rank holds at most its shards, one activation of a micro-batch per layer and {} more, and 5 whole weights.",
    4,
)
ZERO_WEIGHTS = Limit(
    "part1_training_loop", "A rank holds at most its shards, one activation of a micro-batch per layer and 4 more, and {} whole weights.", 5
)
PIPELINE_ACTIVATIONS = Limit(
    "part2_training_loop",
    "A rank holds at most its layers with gradients and optimizer states, one activation per layer, and {} more.",
    4,
)
PIPELINE_MESSAGES = Limit("part2_training_loop", "It sends one message to each neighbor.")
IN_FLIGHT = Limit(
    "part3_training_loop",
    "Rank r holds at most its layers with gradients and optimizer states, and one more "
    "weight; one activation per layer for each of p - r micro-batches in flight; and 4 more "
    "activations.",
)
FURTHER_ACTIVATIONS = Limit(
    "part3_training_loop",
    "Rank r holds at most its layers with gradients and optimizer states, and one more "
    "weight; one activation per layer for each of p - r micro-batches in flight; and {} more "
    "activations.",
    4,
)

SAMPLES = "the simulator checks which samples and layers a value is made of; it has no numbers"
REPLAYED = "the record of a step is replayed, with every value that it uses"
_LOOP = {
    "dtypes": SAMPLES,
    "special values": SAMPLES,
    "layouts": SAMPLES,
    "group order": NO_COMMUNICATOR,
    "same ranks twice": NO_COMMUNICATOR,
    "arguments": REPLAYED,
    "results": REPLAYED,
    "calls": "each call takes simulated time, which is limited",
}
GIVEN_CLUSTERS = "the text says on which two clusters the loop is scored"
NOT_DRAWN = {
    "part1_training_loop": _LOOP,
    "part2_training_loop": _LOOP,
    "part3_training_loop": _LOOP,
    "part4_training_loop": {
        **_LOOP,
        "sizes": GIVEN_CLUSTERS,
        "group sizes": GIVEN_CLUSTERS,
        "many ranks": GIVEN_CLUSTERS,
    },
}
