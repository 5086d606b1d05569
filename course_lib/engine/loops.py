"""Running a coroutine to its end, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

PATIENCE = 0.5  # seconds that cancelled tasks have to end


def run(coroutine: Coroutine) -> object:
    """Run a coroutine in an event loop of its own, and return its result; a loop that runs already waits meanwhile."""
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            # Not for ever: an interrupt may have hit the loop just when it had taken up a task's next step, which then never comes.
            loop.set_exception_handler(lambda *_: None)
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=PATIENCE))
        finally:
            loop.close()
            asyncio._set_running_loop(outer)
