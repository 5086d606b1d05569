"""Run a coroutine to completion, even while an event loop is running, as in a notebook."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine

COURSE_FOLDER = os.path.dirname(os.path.dirname(__file__))
TASK_CANCEL_SECONDS = 0.5  # for cancelled tasks to end


def run(coroutine: Coroutine) -> object:
    """Run a coroutine in a new event loop, and return its result; a loop that is already running is suspended meanwhile."""
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
            # With a timeout: if an interrupt hit the loop just after it had taken a task's next step off its queue, the task never ends.
            loop.set_exception_handler(lambda *_: None)
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=TASK_CANCEL_SECONDS))
        finally:
            loop.close()
            asyncio._set_running_loop(outer)


def suspension_point(task: asyncio.Task) -> str:
    """Return the place where a task is suspended: the innermost line outside course_lib, such as "line 4 of loop"; empty if none."""
    coroutine, found = task.get_coro(), ""
    while getattr(coroutine, "cr_frame", None):
        frame = coroutine.cr_frame
        if not frame.f_code.co_filename.startswith(COURSE_FOLDER):
            found = f"line {frame.f_lineno} of {frame.f_code.co_name}"
        coroutine = coroutine.cr_await
    return found
