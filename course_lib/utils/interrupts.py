"""Deferred interrupts for operations that must not be left half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer interrupts until the end of the `with` block."""
    if threading.current_thread() is not threading.main_thread():  # other threads receive no interrupts
        yield
        return
    received = []
    before = signal.signal(signal.SIGINT, lambda *_: received.append(1))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
        if received:
            signal.raise_signal(signal.SIGINT)
