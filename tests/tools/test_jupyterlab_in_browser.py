"""A notebook in JupyterLab, in a real browser: it runs from top to bottom, with its figures; the live panel follows the ranks."""

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from browser import CHROMIUM, FLAGS
from machine import patient
from nbformat.v4 import new_code_cell, new_notebook

BEGUN = re.compile(r"\[(\*|\d+)\]")  # a cell that runs, or has run
ROOT = Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def lab(tmp_path):
    """JupyterLab on a folder, as `make lab` starts it; gives the address of a file in it."""
    from course_lib.tools.lab import command, environment

    port, token = free_port(), secrets.token_hex(8)
    words = command(tmp_path, ["--no-browser", f"--ServerApp.port={port}", f"--IdentityProvider.token={token}"])
    server = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}", timeout=2).close()
                break
            except OSError:
                assert server.poll() is None, "JupyterLab ended"
                time.sleep(0.5)
        else:
            raise AssertionError("JupyterLab does not answer")
        yield lambda name: f"http://127.0.0.1:{port}/lab/tree/{name}?token={token}"
    finally:
        server.terminate()
        server.wait(30)


def run_all(page):
    """Run all cells, unless they run or have run; does nothing where JupyterLab is not ready yet.

    JupyterLab drops a "Run All" that comes before the kernel is up, and asks for a kernel.
    """
    from playwright.sync_api import TimeoutError as NotReady

    with contextlib.suppress(NotReady):
        select = page.locator('dialog button:has-text("Select")')
        if select.count():
            select.first.click(timeout=3000)
        elif page.locator("text=/Python 3 .*[|] Idle/").count() and not page.locator(".jp-InputPrompt", has_text=BEGUN).count():
            page.click("text=Run >> nth=0", timeout=3000)
            page.click("text=Run All Cells", timeout=3000)


def figures_in_theme(page, theme):
    """The classes of the figures that are shown in one of JupyterLab's themes."""
    page.click(".lm-MenuBar-itemLabel:text-is('Settings')")
    page.hover(".lm-Menu-itemLabel:text-is('Theme')")
    page.click(f".lm-Menu-itemLabel:text-is('JupyterLab {theme}')")
    page.wait_for_function("light => document.body.dataset.jpThemeLight === light", arg=str(theme == "Light").lower())
    page.wait_for_timeout(1000)
    return {*page.locator("img[class^=only-]").evaluate_all("nodes => nodes.filter(n => n.checkVisibility()).map(n => n.className)")}


if CHROMIUM:  # without it there is nothing to test in; conftest.py says so

    @pytest.mark.slow
    def test_a_notebook_runs_in_the_browser_with_its_figures(lab, tmp_path):
        from playwright.sync_api import sync_playwright

        name = "00_warmup.ipynb"
        shutil.copy(ROOT / "notebooks" / "00_warmup" / name, tmp_path / name)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page(viewport={"width": 1300, "height": 1400})
            page.goto(lab(name), timeout=120_000)
            page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
            news = page.locator('.jp-toast-button:has-text("No")')
            if news.count():
                news.first.click()
            deadline = time.monotonic() + patient(300)
            ran = False
            while time.monotonic() < deadline and not ran:
                run_all(page)
                time.sleep(1)
                page.keyboard.press("Control+s")
                with contextlib.suppress(json.JSONDecodeError):  # JupyterLab is just writing it
                    cells = [c for c in json.loads((tmp_path / name).read_text())["cells"] if c["cell_type"] == "code"]
                    ran = cells[-1]["execution_count"] is not None
            validate = page.locator("text=Validate").count()
            shown = "" if ran else page.locator("body").inner_text()
            themes = {theme: figures_in_theme(page, theme) for theme in ("Dark", "Light") if ran}
            if os.environ.get("COURSE_SCREENSHOT"):
                page.screenshot(path=os.environ["COURSE_SCREENSHOT"])
            browser.close()
        assert ran, f"the notebook did not run to its end; the page showed: {shown[-2000:]}"
        assert not validate, "nbgrader's button calls everything a success"
        outputs = {c["id"]: c["outputs"] for c in cells}
        raised = {name: [o["evalue"] for o in out if o["output_type"] == "error"] for name, out in outputs.items()}
        assert [n for n, errors in raised.items() if errors] == ["forget-a-rank"]
        assert "rank 4 has finished the cell without it" in raised["forget-a-rank"][0]
        figures = [n for n, out in outputs.items() if any("image/png" in o.get("data", {}) for o in out)]
        assert len(figures) == 8
        assert themes == {"Dark": {"only-dark"}, "Light": {"only-light"}}

    CELLS = (
        "from course_lib import cluster\nranks = cluster.start(4)\nranks.panel()",
        "%%px\nimport numpy as np\nfrom course_lib.collectives import Communicator\ncomm = Communicator()\n"
        "print('at work')\nwhile comm.Get_rank() == 2:\n    pass\ncomm.Allreduce(np.ones(8), np.empty(8))",
    )
    PANEL = "[...document.querySelectorAll('.course-panel tbody tr')].map(row => [...row.cells].map(cell => cell.innerText))"

    def test_the_panel_changes_while_a_cell_waits_and_after_an_interrupt(lab, tmp_path):
        from playwright.sync_api import sync_playwright

        nbformat.write(new_notebook(cells=[new_code_cell(source) for source in CELLS]), tmp_path / "panel.ipynb")
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page(viewport={"width": 1300, "height": 900})
            page.goto(lab("panel.ipynb"), timeout=120_000)
            page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
            deadline = time.monotonic() + patient(60)
            while time.monotonic() < deadline and not page.locator(".course-panel tbody tr").count():
                run_all(page)
                page.wait_for_timeout(500)

            def shows(*words):
                rows = "".join(f" && rows[{r}].includes({json.dumps(word)})" for r, word in enumerate(words))
                page.wait_for_function(f"() => {{ const rows = {PANEL}.map(row => row.join(' ')); return rows.length === 4{rows}; }}")
                return page.evaluate(PANEL)

            waits = "waits in Allreduce #1 on world{0–3} for rank 2 (cell [2], line 8)"
            before = shows(waits, waits, "computing", waits)
            assert [row[1] for row in before] == ["‖", "‖", "▶", "‖"], "symbols, not colours alone"
            page.wait_for_function(f"before => {PANEL}[0][3] !== before", arg=before[0][3])  # its clock goes on
            assert {row[6] for row in shows(waits, waits, "computing", waits)} == {"at work"}
            assert page.locator(".jp-InputPrompt", has_text="[*]").count() == 1, "the cell still runs"
            page.click("text=Kernel >> nth=0")
            page.click("text=Interrupt Kernel")
            after = shows(*["raised KeyboardInterrupt"] * 4)
            assert {row[1] for row in after} == {"!"}
            page.wait_for_selector("text=4 ranks: no cell is running")
            page.wait_for_selector("text=the cell was stopped")
            page.click("text=Kernel >> nth=0")
            page.click("text=Shut Down Kernel")
            page.wait_for_selector("text=The kernel has ended, or is out of reach", timeout=patient(60) * 1000)
            browser.close()
