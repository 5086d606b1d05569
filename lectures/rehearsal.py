"""A talk in a headless browser, for tests and benchmarks."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lectures import show

CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
STARTUP_TIMEOUT_SECONDS = 60  # seconds for JupyterLab to start


@contextmanager
def open_talk(
    browser, part: str, work: Path, *, width: int = 1280, height: int = 720, minutes: int | None = None
) -> Iterator[tuple[object, float]]:
    """Open a talk as `make lecture` does.

    Parameters
    ----------
    browser : playwright.sync_api.Browser
    part : str
    work : Path
        The lecturer's folder.
    width, height : int
        Size of the screen in pixels.
    minutes : int, optional
        As for `talk.talk`.

    Yields
    ------
    page : playwright.sync_api.Page
        Showing the first slide.
    seconds : float
        Time until then.

    Raises
    ------
    RuntimeError
        JupyterLab does not start.
    """
    path, _ = show.put_talk(part, minutes, work, False)
    command, log_path = show.slide_show(work, path, ["--no-browser", "--ServerApp.port=0"]), work / "said.txt"
    began = time.monotonic()
    with log_path.open("w") as file:
        server = subprocess.Popen(command, cwd=work, env=show.LECTURE_ENVIRONMENT, stdout=file, stderr=file)
    try:
        while not (address := re.search(r"http://127\.0\.0\.1:\S+", log_path.read_text())):
            if server.poll() is not None or time.monotonic() - began > STARTUP_TIMEOUT_SECONDS:
                raise RuntimeError(f"JupyterLab does not start. Its output: {log_path.read_text()}")
            time.sleep(0.05)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(address[0])
        page.wait_for_selector("body.lecture .lecture-corner", timeout=1000 * STARTUP_TIMEOUT_SECONDS)
        yield page, time.monotonic() - began
    finally:
        server.terminate()
        try:
            server.wait(STARTUP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
