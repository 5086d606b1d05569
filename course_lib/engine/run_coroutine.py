"""Running a coroutine to its end, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine

COURSE_FOLDER = os.path.dirname(os.path.dirname(__file__))
TASK_CANCEL_SECONDS = 0.5  # seconds that cancelled tasks have to end


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
                loop.run_until_complete(asyncio.wait(left, timeout=TASK_CANCEL_SECONDS))
        finally:
            loop.close()
            asyncio._set_running_loop(outer)


def suspension_point(task: asyncio.Task) -> str:
    """Return where a waiting task stands: the innermost line that is not the course's, such as "line 4 of loop"; empty if there is none."""
    coroutine, found = task.get_coro(), ""
    while getattr(coroutine, "cr_frame", None):
        frame = coroutine.cr_frame
        if not frame.f_code.co_filename.startswith(COURSE_FOLDER):
            found = f"line {frame.f_lineno} of {frame.f_code.co_name}"
        coroutine = coroutine.cr_await
    return found
