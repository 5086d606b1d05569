"""Part 11's quick questions: the measured answers agree with the rule in `placement.product`."""

import itertools

import pytest

from course_lib import placement
from course_lib.check.matmul import questions
from course_lib.placement import LAYER_OPERATORS, partial

PAIRS = [*itertools.product([name for name, kind in questions.NAMES.items() if kind != partial], repeat=2)]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_what_is_measured_is_what_the_rule_says(a, b):
    try:
        kind = placement.product(questions.NAMES[a], questions.NAMES[b])
        wanted = next(name for name, found in questions.NAMES.items() if found == kind)
    except placement.GatherFirst:
        wanted = questions.GATHER
    assert questions.judge(a, b, wanted.upper()).startswith("right.")
    for other in set(questions.MEANINGS) - {wanted}:
        said = questions.judge(a, b, other)
        assert said.startswith("not so") and f"are {wanted}" not in said


def test_an_empty_or_an_unknown_answer_is_neither_right_nor_wrong():
    assert "question mark" in questions.judge("replicated", "replicated", "?")
    assert "'copied' is none of the answers" in questions.judge("replicated", "replicated", "copied")


def test_a_layers_lines_are_conjugate():
    """A gradient is partial where ranks did different work with an array, and each collective has its conjugate."""
    conjugate = {("all-gather", "reduce-scatter"), ("all-gather", "slice"), ("nothing", "nothing"), ("all-reduce", "nothing")}
    for op in LAYER_OPERATORS.values():
        assert (op.forward, op.backward) in conjugate | {("nothing", "all-reduce")}
        assert (op.grad_after == partial) == (op.backward in ("all-reduce", "reduce-scatter"))
        assert (op.before == partial) == (op.forward in ("all-reduce", "reduce-scatter"))
