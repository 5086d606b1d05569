"""An interrupt that comes where nothing may be left half done waits for its end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """An interrupt that comes meanwhile is handled at the end."""
    if threading.current_thread() is not threading.main_thread():  # it gets none
        yield
        return
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(1))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
        if came:
            signal.raise_signal(signal.SIGINT)
