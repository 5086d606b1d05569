"""Kinds of cases that do not apply to the exercises of part 13, which have no limits."""

NO_COMMUNICATOR = "it is given numbers, and no communicator"
NOT_DRAWN = {
    "rank_batches": {
        "special values": "samples are not looked at",
        "layouts": "samples are not looked at",
        "dtypes": "samples are not looked at",
        "arguments": "going through a loader is no change of it",
        "results": "a loader makes its arrays for each batch",
        "group order": NO_COMMUNICATOR,
        "many ranks": "on more ranks than batches nobody gets one, which is drawn",
        "same ranks twice": NO_COMMUNICATOR,
        "calls": NO_COMMUNICATOR,
    },
    "check_parameter_closeness": {
        "layouts": "a model's arrays are in C order",
        "results": "it returns one truth value",
        "group order": "it works on all ranks",
        "group sizes": "it works on all ranks",
        "many ranks": "it works on all ranks",
        "same ranks twice": "it works on all ranks",
        "calls": "it is called now and then, and its bytes are not the point",
    },
}
