"""A lecture in a browser: seconds to the first slide, and from slide to slide; and the web site, built a second time."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.turns import turns

PART = "06_megatron_backward"
TURNS = turns(3)


def figures() -> Iterator[tuple[str, list[float], float]]:
    from playwright.sync_api import sync_playwright

    from lectures import rehearsal

    firsts, steps = [], []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=rehearsal.CHROMIUM_FLAGS)
        for _ in range(TURNS):
            with tempfile.TemporaryDirectory() as folder, rehearsal.open_talk(browser, PART, Path(folder)) as (page, seconds):
                firsts.append(seconds)
                for _ in range(8):
                    steps.append(step(page))
                page.close()
        browser.close()
    yield "lecture-first-slide-seconds", firsts, 10.0
    yield "lecture-next-slide-seconds", steps, 0.2


def step(page) -> float:
    """Return the seconds from the key press to the next slide, drawn."""
    began = time.perf_counter()
    page.keyboard.press("PageDown")
    page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    return time.perf_counter() - began


def site() -> Iterator[tuple[str, list[float], float]]:
    """Build the site from nothing, running all notebooks; and again."""
    from docs import build

    with tempfile.TemporaryDirectory() as folder:
        seconds = []
        for _ in range(2):
            began = time.perf_counter()
            build.site(out=Path(folder))
            seconds.append(time.perf_counter() - began)
    yield "site-from-nothing-seconds", seconds[:1], 600.0
    yield "site-again-seconds", seconds[1:], 20.0
