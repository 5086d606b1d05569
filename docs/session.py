"""README's moving picture: a student's first cells, recorded from JupyterLab in a browser without a window."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat

from course_lib.tools.lab import command, environment
from lectures.rehearsal import CHROMIUM_FLAGS

WINDOW = {"width": 876, "height": 672}  # pixels
LEFT, TOP, RIGHT, BOTTOM = 33, 56, 33, 24  # what lies around the notebook, and is not recorded
COLOR_COUNT = 64
FIRST_FRAME = 5  # the message: where nothing moves, the picture is this one
WAIT_SECONDS = 120  # for JupyterLab to come up, and for a cell to run
START = "from course_lib import cluster, plots\n\nranks = cluster.start(8)\nranks"
SET_UP = """\
%%px
import numpy as np
from course_lib.collectives import Communicator

comm = Communicator()
rank = comm.Get_rank()
print("I am", "even" if rank % 2 == 0 else "odd")"""
FORGETFUL = """\
%%px
mine = np.array([1, rank, rank**2])
total = np.empty_like(mine)
if rank != 4:
    comm.Allreduce(mine, total)"""
REPAIRED = FORGETFUL.replace("if rank != 4:\n    ", "")
DRAW = 'plots.exchange(ranks.pull("mine"), ranks.pull("total"), "An all-reduce: the sum")'


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """JupyterLab on a folder, as `make lab` starts it; yields the address of its notebook `first.ipynb`."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("")], metadata=kernel), folder / "first.ipynb")
    said, words = folder / "said.txt", command(folder, ["--no-browser", "--ServerApp.port=0"])
    with said.open("w") as file:
        server = subprocess.Popen(words, cwd=folder, env=environment(), stdout=file, stderr=file)
    try:
        until = time.monotonic() + WAIT_SECONDS
        while not (found := re.search(r"(http://127\.0\.0\.1:\d+)\S*(\?token=\w+)", said.read_text())):
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"JupyterLab does not come up. It said: {said.read_text()}")
            time.sleep(0.1)
        yield f"{found[1]}/doc/tree/first.ipynb{found[2]}"
    finally:
        server.terminate()
        server.wait(WAIT_SECONDS)


class FrameRecorder:
    """A browser's page with a notebook, and the frames recorded from it.

    Attributes
    ----------
    frames : list of (bytes, int)
        PNG, and for how many milliseconds it is shown.
    """

    def __init__(self, page):
        self.page, self.frames, self.ran = page, [], 0

    def record(self, milliseconds: int) -> None:
        """Record what the page shows now, with the pointer and the cursor out of the way."""
        clip = {"x": LEFT, "y": TOP, "width": WINDOW["width"] - LEFT - RIGHT, "height": WINDOW["height"] - TOP - BOTTOM}
        self.page.mouse.move(WINDOW["width"] - 5, 5)
        self.page.wait_for_timeout(250)
        self.frames.append((self.page.screenshot(clip=clip, caret="hide"), milliseconds))

    def cell(self, source: str, shown: int, top: int = 0) -> None:
        """Type a cell, run it, and record both: its output for `shown` milliseconds, scrolled to the cell number `top`."""
        self.page.keyboard.press("Enter")
        self.page.keyboard.insert_text(source)
        self.record(1400)
        self.page.keyboard.press("Shift+Enter")
        self.page.keyboard.press("Escape")
        self.ran += 1
        prompt = re.compile(rf"\[{self.ran}\]:")
        self.page.locator(".jp-InputPrompt", has_text=prompt).wait_for(timeout=1000 * WAIT_SECONDS)
        self.page.wait_for_timeout(700)
        self.page.evaluate(f"document.querySelectorAll('.jp-Notebook .jp-Cell')[{top}].scrollIntoView()")
        self.record(shown)

    def change_last(self) -> None:
        """Empty the cell that ran last, to type it anew."""
        for key in ("Escape", "ArrowUp", "Enter", "Control+a", "Delete", "Escape"):
            self.page.keyboard.press(key)


def record() -> list[tuple[bytes, int]]:
    """Run the cells in JupyterLab, and give the frames."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play, served(Path(folder)) as address:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport=WINDOW)
        page.goto(address)
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=1000 * WAIT_SECONDS)
        page.locator("text=/Python 3 .*[|] Idle/").first.wait_for(timeout=1000 * WAIT_SECONDS)
        page.locator(".jp-Notebook .jp-InputArea-editor").first.click()
        page.keyboard.press("Escape")
        recorder = FrameRecorder(page)
        recorder.cell(START, 1200)
        recorder.cell(SET_UP, 2500)
        recorder.cell(FORGETFUL, 5500, top=1)
        recorder.change_last()
        recorder.cell(REPAIRED, 1200, top=1)
        recorder.cell(DRAW, 5000, top=2)
        browser.close()
    return recorder.frames


def gif(frames: list[tuple[bytes, int]]) -> bytes:
    """The frames as one moving GIF, with the colours of all of them; it goes round, and begins at `FIRST_FRAME`."""
    from PIL import Image

    frames = frames[FIRST_FRAME:] + frames[:FIRST_FRAME]
    images = [Image.open(io.BytesIO(png)).convert("RGB") for png, _ in frames]
    all_of_them = Image.new("RGB", (images[0].width, sum(image.height for image in images)))
    for i, image in enumerate(images):
        all_of_them.paste(image, (0, i * image.height))
    palette = all_of_them.quantize(COLOR_COUNT, dither=Image.Dither.NONE)
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=[ms for _, ms in frames], loop=0, optimize=True)
    return file.getvalue()
