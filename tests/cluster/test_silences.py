"""Silences that are planned in the notebook: not reached, planned for ranks that are gone, and ended with the ranks."""

import threading
import time

import pytest
from machine import patient

from course_lib.cluster import Ranks, RanksGone

SETUP = "from course_lib.collectives import Communicator\ncomm = Communicator()"


@pytest.fixture
def two():
    ranks = Ranks(2)
    ranks.run(SETUP)
    yield ranks
    ranks.stop()


def test_a_silence_that_is_not_reached_is_said_and_forgotten(two, capsys):
    two.silence(1, seconds=60, after=5)
    began = time.monotonic()
    two.run("comm.Barrier()\ncomm.Barrier()")
    said = capsys.readouterr().out
    assert "rank 1 did not fall silent: it has sent messages or begun collectives 2 times, and that was to be after 5." in said
    two.run("def meet(): comm.Barrier()")
    assert capsys.readouterr().out == "" and time.monotonic() - began < patient(10)
    two.silence(0, seconds=60, after=1)
    two.call("meet")
    assert "rank 0 did not fall silent" in capsys.readouterr().out
    two.silence(1, seconds=0.1)
    two.run("comm.Barrier()")
    assert capsys.readouterr().out == ""


def test_new_ranks_have_no_silence_that_was_planned_for_the_old_ones(two, capsys):
    two.silence(1, seconds=60)
    two.restart()
    began = time.monotonic()
    two.run(f"{SETUP}\ncomm.Barrier()")
    assert time.monotonic() - began < patient(10) and capsys.readouterr().out == ""


def test_stopping_during_a_silence_is_quick_and_says_that_the_ranks_were_stopped(two):
    two.silence(1, seconds=60)
    took = []

    def stop():
        began = time.monotonic()
        two.stop()
        took.append(time.monotonic() - began)

    timer = threading.Timer(1.0, stop)
    timer.start()
    with pytest.raises(RanksGone, match=r"^the ranks were stopped. ranks.restart"):
        two.run("comm.Barrier()")
    timer.join()
    assert took[0] < patient(5)
