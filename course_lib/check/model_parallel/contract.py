"""Limits of the hidden tests of parts 03 to 07, and the kinds of cases that do not apply."""

from course_lib.check.limits import NO_COMMUNICATOR, Limit

GATHERS = ("naive_collect_forward_input", "naive_collect_forward_output")
BYTES = {
    **{
        name: Limit(
            name,
            "A rank sends at most what one all-gather of the parts sends, and {} bytes.",
            64,
        )
        for name in GATHERS
    },
    "megatron_collect_forward_output": Limit(
        "megatron_collect_forward_output",
        "A rank sends at most what one all-reduce of `out` sends, and {} bytes.",
        64,
    ),
    "naive_collect_backward_x": Limit(
        "naive_collect_backward_x",
        "A rank sends at most what one reduce-scatter of `grad_x` sends, and {} bytes.",
        64,
    ),
    "collect_weight_grad": Limit(
        "collect_weight_grad",
        "A rank sends at most what one all-reduce of each gradient sends, and {} bytes.",
        64,
    ),
}
CALLS = {name: Limit(name, "It makes at most {} calls of the communicator.", 8) for name in BYTES}
NO_CALLS = {
    name: Limit(name, "The hidden tests count calls: a rank must not ask for what it has.")
    for name in (
        "megatron_collect_forward_input",
        "naive_collect_backward_output",
        "megatron_collect_backward_output",
        "megatron_collect_backward_x",
    )
}
COPY = Limit(
    "naive_collect_backward_output",
    "A slice of columns is a view with gaps, which MPI would misread, so copy it.",
)

SUMS = "a sum passes NaN and infinities on, however it is computed"
ONE_SPLIT = "a rank's part is the same function of its index on any number of ranks"
_MOVES = {"many ranks": ONE_SPLIT}
NOT_DRAWN = {
    **dict.fromkeys(GATHERS, _MOVES),
    "megatron_collect_forward_input": _MOVES,
    "megatron_collect_forward_output": {"special values": SUMS, **_MOVES},
    "naive_collect_backward_output": {"same ranks twice": NO_COMMUNICATOR, "group order": NO_COMMUNICATOR},
    "naive_collect_backward_x": {"special values": SUMS, **_MOVES},
    "megatron_collect_backward_output": {
        "same ranks twice": NO_COMMUNICATOR,
        "group order": NO_COMMUNICATOR,
        **_MOVES,
    },
    "megatron_collect_backward_x": _MOVES,
    "collect_weight_grad": {"special values": SUMS, **_MOVES},
}
