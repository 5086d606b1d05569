"""A slow link: the same values, the time of the bytes, and a trace that shows it."""

import numpy as np
import pytest
from mpi4py import MPI

from course_lib.collectives import Communicator
from course_lib.collectives.instrumentation.recording import recording
from course_lib.gpt.fsdp import SlowLink, slow_link
from course_lib.trace.recorder import Event


class Pair(Communicator):
    """A group of one that takes itself for two."""

    def Get_size(self):
        return 2


@pytest.mark.parametrize("operation", ["Allgather", "Alltoall"])
def test_a_call_takes_the_time_of_its_bytes_and_a_trace_shows_it(operation, monkeypatch):
    slept = []
    monkeypatch.setattr(slow_link.time, "sleep", slept.append)
    link, sent, received = SlowLink(Pair(MPI.COMM_SELF), bandwidth=100.0), np.arange(25, dtype=np.int64), np.empty(25, np.int64)
    with recording() as recorder:
        recorder.clock = lambda: 1e6 * len(slept)
        getattr(link, operation)(sent, received)
    assert received.tolist() == sent.tolist() and slept == [1.0]  # half of 200 bytes
    (event,) = (Event(*fields) for fields in recorder.events)
    assert event.name == operation and event.end == 1e6


def test_without_a_trace_and_other_calls_are_those_of_the_group(monkeypatch):
    monkeypatch.setattr(slow_link.time, "sleep", lambda seconds: None)
    link, received = SlowLink(Communicator(MPI.COMM_SELF), 1.0), np.empty(2)
    link.Allgather(np.ones(2), received)
    assert received.tolist() == [1, 1] and link.Get_rank() == 0
