"""`make lab`: copy new notebooks to my_work/, and open JupyterLab there."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from pathlib import Path

from course_lib.tools import ai_tutor, first_cell, start_page, update

PROJECT_ROOT = Path(__file__).resolve().parents[2]
IDLE_SHUTDOWN_SECONDS = (
    2 * 3600
)  # seconds without a cell after which a notebook's idle ranks are shut down: its page may have been closed long ago
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE_INFO = {  # as ipykernel writes it
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}


def copy_new(notebooks: Path, work: Path) -> list[Path]:
    """Copy the notebooks that are not in `work` yet; existing files are never touched.

    Parameters
    ----------
    notebooks : Path
        Folder with one subfolder per part.
    work : Path
        The student's folder; created if it does not exist.

    Returns
    -------
    list of Path
        The new copies.
    """
    work.mkdir(exist_ok=True)
    new = []
    for source in sorted(notebooks.glob("*/*.ipynb")):
        copy = work / source.name
        if copy.exists() or copy.is_symlink():
            continue
        partial = copy.with_suffix(".part")
        try:
            partial.write_text(with_kernel_metadata(source.read_text(encoding="utf-8")), encoding="utf-8")
            os.link(partial, copy)  # atomic, and fails rather than overwrite
        finally:
            partial.unlink(missing_ok=True)
        update.keep_original(work, source)
        new.append(copy)
    return new


def with_kernel_metadata(text: str) -> str:
    """Add the kernel metadata that JupyterLab writes; otherwise a notebook that was only opened would count as changed."""
    try:
        notebook = json.loads(text)
        notebook["metadata"] |= {"kernelspec": KERNELSPEC, "language_info": {**LANGUAGE_INFO, "version": platform.python_version()}}
    except (ValueError, KeyError, TypeError):
        return text
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def command(work: Path, arguments: list[str]) -> list[str]:
    """Command that opens JupyterLab in `work`, on loopback with a token; arguments override our settings."""
    own = {
        ("LabApp.default_url",): f"/lab/tree/{start_page.FILE_NAME}" if start_page.is_ours(work) else "/lab",
        ("ServerApp.ip", "ip"): "127.0.0.1",
        ("ServerApp.root_dir", "notebook-dir"): work,
        ("Application.log_level", "log-level"): "ERROR",
    }
    set_already = {word.removeprefix("--").partition("=")[0] for word in arguments}  # Jupyter refuses to start if an option is given twice
    options = [f"--{names[0]}={value}" for names, value in own.items() if not set_already.intersection(names)]
    lab = [sys.executable, "-m", "jupyterlab", *options]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        lab.append("--allow-root")  # containers often have no other user
    display = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not display:
        lab.append("--no-browser")  # Jupyter then prints the address
    return [*lab, *arguments]


def environment() -> dict[str, str]:
    """Environment for JupyterLab, with our settings before the user's own.

    It has no nbgrader Validate button, which ignores the visible checks, says "Success" for an empty notebook, and saves functions.
    """
    others = filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])
    ours = {"JUPYTER_CONFIG_PATH": os.pathsep.join([str(Path(__file__).parent / "config"), *others])}
    said = filter(
        None, ["ignore:Overriding existing post_save_hook", os.environ.get("PYTHONWARNINGS")]
    )  # Jupyter reads this setting several times
    ours["PYTHONWARNINGS"] = ",".join(said)
    return {"COURSE_REST": str(IDLE_SHUTDOWN_SECONDS), **os.environ, **ours}


def prepare() -> Path:
    """Bring my_work/ up to date, print what is new, and return its path."""
    first_cell.install_config()
    work = PROJECT_ROOT / "my_work"
    new = copy_new(PROJECT_ROOT / "notebooks", work)
    update.keep_untouched(PROJECT_ROOT / "notebooks", work)
    if new:
        print(f"New in my_work/: {', '.join(p.name for p in new)}")
    for mine in update.outdated(PROJECT_ROOT / "notebooks", work):
        print(f"{mine.name} has changed since you opened it: make update PART={mine.stem} adds the new text and keeps your cells.")
    with contextlib.suppress(OSError):  # if the page cannot be written, it is not opened
        start_page.write(work)
    with contextlib.suppress(OSError):
        ai_tutor.write(work)
    return work


def main() -> None:
    work = prepare()
    print("Opening JupyterLab in my_work/. Your files there are yours: nothing is ever overwritten. Ctrl-C twice ends it.", flush=True)
    words = command(work, sys.argv[1:])
    os.chdir(work)
    os.execve(words[0], words, environment())


if __name__ == "__main__":
    main()
