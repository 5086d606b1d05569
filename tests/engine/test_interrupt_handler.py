"""An interrupt while a thread communicates."""

import sys

import pytest

from course_lib.collectives.progress import operations
from course_lib.engine.requests import handler


def test_an_interrupt_waits_where_its_own_thread_communicates(monkeypatch):
    monkeypatch.setattr(handler, "_interruptible_from", 0.0)
    monkeypatch.setattr(operations.progress_state, "deferrals", 1)
    with pytest.raises(KeyboardInterrupt):  # another thread communicates
        handler._interrupted(2, sys._getframe())
    monkeypatch.setattr(handler, "_interruptible_from", 0.0)
    names = {"sys": sys}
    exec(compile("frame = sys._getframe()", f"{handler.COLLECTIVES_FOLDER}some.py", "exec"), names)
    handler._interrupted(2, names["frame"])
    assert operations.progress_state.interrupt_pending
    operations.progress_state.interrupt_pending = False
