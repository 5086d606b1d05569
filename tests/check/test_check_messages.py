"""A check's messages, in the open and of a hidden test."""

import numpy as np
import pytest

from course_lib.check import Check, CheckFailed


def test_a_check_says_what_and_where():
    check = Check("f")
    with pytest.raises(CheckFailed, match=r"x on rank 2 has shape \(2,\), expected \(3,\)"):
        check.array(np.ones(2), np.ones(3), name="x", rank=2)
    with pytest.raises(CheckFailed, match="x on rank 2 has dtype float64, expected float32"):
        check.array(np.ones(3), np.ones(3, np.float32), name="x", rank=2)
    with pytest.raises(CheckFailed, match=r"at \[1\] it is 5.0, expected 1.0"):
        check.array(np.array([1.0, 5.0]), np.ones(2), name="x", rank=0)
    with pytest.raises(CheckFailed, match="NumPy array; got None"):
        check.array(None, np.ones(2), name="x", rank=0)
    with pytest.raises(CheckFailed, match="must return 2 values; got 3 values"):
        check.tuple((1, 2, 3), 2, name="f", rank=0)
    for wrong in (2.0, True, "2", None, 3):
        with pytest.raises(CheckFailed):
            check.value(wrong, 2, name="n", rank=0)
    check.value(np.int64(2), 2, name="n", rank=0)
    with pytest.raises(CheckFailed):
        check.array(np.array([np.nan]), np.array([1.0]), name="x", rank=0, rtol=1e-3)


def test_a_hidden_check_shows_no_value_but_its_seed():
    check = Check("f", show=False)
    for compare in (
        lambda: check.array(np.array([1.0, 5.0]), np.array([1.0, 123.0]), name="x", rank=0),
        lambda: check.value(7, 123, name="x", rank=0),
    ):
        with pytest.raises(CheckFailed) as caught:
            compare()
        assert "123" not in str(caught.value).replace(str(check.seed), "") and f"seed {check.seed}" in str(caught.value)


def test_a_check_that_passes_says_that_the_latest_cell_has_failed(monkeypatch, capsys):
    monkeypatch.setattr("course_lib.students.unfinished_definitions", {"f", "g"})
    Check("f and h").passed()
    assert capsys.readouterr().out == (
        "f and h: all ranks have what was expected. "
        "But the last cell with f has ended with an error: an earlier version may have been checked.\n"
    )
    Check("h").passed()
    assert capsys.readouterr().out == "h: all ranks have what was expected.\n"
