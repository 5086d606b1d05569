"""Replies of several ranks, grouped: equal ones are shown once, and causes come first."""

import pytest

from course_lib.cluster import replies


def test_alike_is_shown_once_and_the_odd_one_by_itself():
    found = [(r, {"outputs": [{"stream": "stdout", "text": "odd" if r == 2 else "same"}], "error": None}) for r in range(4)]
    assert [who for who, _ in replies.group(found, "outputs")] == [[0, 1, 3], [2]]


def test_the_cause_comes_before_what_follows_from_it():
    wait = {"name": "DeadlockError", "kind": ["DeadlockError"], "message": "waits", "lines": [], "place": ""}
    cause = {"name": "ZeroDivisionError", "kind": ["ZeroDivisionError"], "message": "division", "lines": [], "place": ""}
    with pytest.raises(replies.RanksError) as caught:
        replies.raise_errors([(r, {"error": cause if r == 3 else wait}) for r in range(4)])
    assert [who for who, _ in caught.value.groups] == [[3], [0, 1, 2]]
    assert str(caught.value) == "rank 3: ZeroDivisionError: division"
