"""A check's messages about wrong values: how they relate to the right ones, where that can be seen."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.check import Check, CheckFailed

WANT = np.arange(1.0, 10.0).reshape(3, 3)
SAID = {
    "each is 2 times what it should be": 2 * WANT,
    "each is -1 times": -WANT,
    "each is 0.25 times": WANT / 4,
    "they are the right ones, transposed": WANT.T.copy(),
    "they are the right ones, in another order": np.roll(WANT, 1),
    "all are 0": np.zeros_like(WANT),
}


@pytest.fixture(autouse=True)
def no_call_before(monkeypatch):
    monkeypatch.setattr("course_lib.cluster.replies.wrong_group", "")


def said(got, want):
    with pytest.raises(CheckFailed) as caught:
        Check("x").array(got, want, name="x", rank=0, cause="this", rtol=1e-9)
    return str(caught.value)


@pytest.mark.parametrize("what", SAID)
def test_what_wrong_values_are_is_said(what):
    text = said(SAID[what], WANT)
    assert text.startswith("x on rank 0 has the right shape, but") and f"; {what}" in text
    assert re.search(r"shape, but \d of 9 values differ; at \[\d, \d\] it is ", text)
    if "times" in what:  # that of the exercise may be about places, and these are right
        assert "A usual cause: a wrong sign." in text if "-1" in what else "A usual cause: a sum instead of a mean or vice versa," in text


def test_a_single_number_where_an_array_is_expected():
    assert "A usual cause: a sum, mean or maximum over all axes; choose the axis with axis=." in said(np.float32(3), WANT)
    assert said({}, WANT) == "x on rank 0 must be a NumPy array; got dict {}."


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=6), st.data())
def test_nothing_that_an_answer_returns_stops_the_check_from_saying_so(values, data):
    want = np.array(data.draw(st.lists(st.floats(-10, 10), min_size=len(values), max_size=len(values))))
    dtype = data.draw(st.sampled_from([float, complex, object]))
    got = np.array(values).astype(dtype)
    if not np.array_equal(got, want):
        with pytest.raises(CheckFailed):
            Check("x").array(got, want, name="x", rank=0, dtype=False)


def test_a_known_mistake_is_named_and_then_no_usual_cause():
    known = {"the sum": 5 * WANT, "of another shape": WANT[0]}
    with pytest.raises(CheckFailed, match=r"differ; .* expected 1.0\. It is the sum\.$"):
        Check("x").array(5 * WANT, WANT, name="x", rank=0, cause="this", instead=known)
    with pytest.raises(CheckFailed, match=r"has shape \(3,\), expected \(3, 3\)\. It is of another shape\.$"):
        Check("x").array(WANT[0], WANT, name="x", rank=0, cause="this", instead=known)
    with pytest.raises(CheckFailed, match="A usual cause: this"):
        Check("x").array(WANT + 1, WANT, name="x", rank=0, cause="this", instead=known)
    with pytest.raises(CheckFailed, match="A usual cause: this"):  # the mean over one rank is the sum: that is not what is wrong
        Check("x").array(WANT + 1e-7, WANT, name="x", rank=0, cause="this", rtol=1e-13, instead={"the mean": WANT / 1})


def test_a_known_mistake_to_the_last_bit_is_named_though_it_is_nearly_right():
    rounded, mine = np.array([0.333, 65504.0]), np.array([1 / 3, 65504.0])
    with pytest.raises(CheckFailed, match=r"It is not rounded\.$"):
        Check("x").array(mine, rounded, name="x", rank=0, cause="this", instead={"not rounded": mine})
    with pytest.raises(CheckFailed, match=r"has dtype uint16, expected float64\. It is bit patterns\.$"):
        Check("x").array(np.array([1, 2], np.uint16), rounded, name="x", rank=0, instead={"bit patterns": np.array([1, 2], np.uint16)})
    with pytest.raises(CheckFailed, match=r"wrong value: 2\.0, expected 1\.0\.$"):
        Check("x").numbers(2.0, [1.0], name="x", rank=0)


def test_the_cause_of_wrong_values_is_not_that_of_a_wrong_shape():
    for how, cause in (({}, "A usual cause: this"), ({"shape_cause": ""}, "expected (3, 3).")):
        with pytest.raises(CheckFailed) as caught:
            Check("x").array(WANT[0], WANT, name="x", rank=0, cause="this", **how)
        assert str(caught.value).endswith(cause + "." * cause.endswith("s"))


def test_one_wrong_value_close_to_the_right_one_is_no_other_order():
    almost = WANT.copy()
    almost[0, 0] += 1e-4
    assert "another order" not in said(almost, WANT)


def test_what_was_never_written_and_what_is_empty():
    for strange in (6e14, 1e-310, np.inf, np.nan):
        got = WANT.copy()
        got[1] = strange
        assert "never written" in said(got, WANT)
    assert "an empty slice" in said(WANT[:0], WANT)


def test_sizes_do_not_come_again_before_all_others_have_come():
    for _ in range(50):
        check = Check("x")
        first = [check.sizes(2, 2, 9) for _ in range(3)]
        assert len({size for draw in first for size in draw}) == 6 and all(2 <= size < 9 for draw in first for size in draw)
        later = [check.sizes(3, 2, 9) for _ in range(10)]
        assert all(len(set(draw)) == 3 for draw in later) and {size for draw in later for size in draw} == set(range(2, 9))
