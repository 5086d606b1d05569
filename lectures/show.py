"""`make solved` and `make lecture`: open solved notebooks from my_lectures/ in JupyterLab, as they are or as slides.

The slides come from the JupyterLab extension in `front/`: the same notebook, with its kernel, one slide at a time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import nbformat

from course_lib.plots.figures import FIGURE_STYLE_ENV
from course_lib.tools import first_cell
from course_lib.tools.lab import command, environment
from grading.authoring import build, reference
from grading.paths import ROOT, parts, selected_parts
from lectures import talk

FRONTEND = Path(__file__).resolve().parent / "front"
LECTURES_FOLDER = ROOT / "my_lectures"
LECTURE_ENVIRONMENT = {
    **os.environ,
    FIGURE_STYLE_ENV: "slides",  # larger type, for the last row
    # Extensions that no slide needs (grading, diffs, terminals) would take a third of the time to the first one.
    "JUPYTER_CONFIG_PATH": os.pathsep.join([str(FRONTEND / "config"), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]),
}
MIN_TALK_MINUTES = 15  # minutes needed for the slides that are never left out


class TalkError(ValueError):
    """A talk cannot be opened; the message says why."""


def write_unless_present(notebook: nbformat.NotebookNode, path: Path, anew: bool) -> bool:
    """Write a notebook, unless there is one and it is not to be replaced (`anew`); return whether it was written."""
    if path.exists() and not anew:
        return False
    partial = path.with_suffix(".part")
    build.write(notebook, partial)
    os.replace(partial, path)
    return True


def put_functions(work: Path, anew: bool) -> None:
    """Write the solved functions that later parts load; existing files are kept, unless `anew`."""
    with tempfile.TemporaryDirectory(dir=work) as fresh:
        for path in reference.write(fresh):
            if anew or not (work / path.name).exists():
                os.replace(path, work / path.name)


def put_solved(names: list[str], work: Path, anew: bool) -> list[Path]:
    """Write the solved notebooks of these parts, and the functions; return the notebooks that existed and were kept.

    Functions are rewritten only with all parts: one file has those of several.
    """
    work.mkdir(exist_ok=True)
    put_functions(work, anew and len(names) == len(parts()))
    return [path for name in names if not write_unless_present(talk.solved(name), path := work / f"{name}.ipynb", anew)]


def put_talk(part: str, minutes: int | None, work: Path, anew: bool) -> tuple[Path, bool]:
    """Write a talk without outputs, and the functions that it may load; return its path, and whether it existed and was kept.

    Raises
    ------
    TalkError
        It is too short, or the existing file is not a notebook.
    """
    if minutes is not None and minutes < MIN_TALK_MINUTES:
        raise TalkError(f"MINUTES={minutes} is too short: talks of {MIN_TALK_MINUTES} and of 50 minutes are prepared.")
    work.mkdir(exist_ok=True)
    put_functions(work, False)
    path = work / (f"{part}.talk.ipynb" if minutes is None else f"{part}.talk-{minutes}.ipynb")
    stays = not write_unless_present(talk.talk(part, minutes), path, anew)
    if stays:
        try:
            notebook = nbformat.read(path, as_version=4)
        except (nbformat.reader.NotJSONError, nbformat.ValidationError, OSError, UnicodeDecodeError):
            raise TalkError(f"{path.name} in {work.name}/ cannot be read as a notebook. NEW=1 replaces it.") from None
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        write_unless_present(notebook, path, anew=True)
    return path, stays


def slide_show(work: Path, path: Path, arguments: list[str]) -> list[str]:
    """Return the command that opens a talk as slides, with settings of its own: those of the lecturer's JupyterLab do not change."""
    own = work / ".jupyter"
    shutil.rmtree(own / "workspaces", ignore_errors=True)  # the tabs that were open last time
    shutil.copytree(FRONTEND / "settings", own / "settings", dirs_exist_ok=True)
    words = [
        f"--LabApp.extra_labextensions_path={FRONTEND / 'labextensions'}",
        f"--LabApp.user_settings_dir={own / 'settings'}",
        f"--LabApp.workspaces_dir={own / 'workspaces'}",
        f"--LabApp.default_url=/lab/tree/{path.name}",
    ]
    return command(work, [*words, *arguments])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("solved", "lecture"))
    parser.add_argument("--part", default="", help="such as 06_megatron_backward")
    parser.add_argument("--minutes", help="how long the talk may take; 15 and 50 are prepared")
    parser.add_argument("--new", action="store_true", help="replace what is already in my_lectures/")
    options, others = parser.parse_known_args()
    if options.part:
        (options.part,) = selected_parts([options.part])
    if options.minutes and not options.minutes.isdigit():
        parser.exit(2, f"MINUTES={options.minutes} is not a number of minutes: talks of {MIN_TALK_MINUTES} and of 50 are prepared.\n")
    first_cell.install_config()
    if options.what == "lecture":
        if not options.part:
            parser.exit(2, f"Which part? make lecture PART=06_megatron_backward. The parts: {', '.join(parts())}.\n")
        try:
            path, stays = put_talk(options.part, int(options.minutes) if options.minutes else None, LECTURES_FOLDER, options.new)
        except TalkError as error:
            parser.exit(2, f"{error}\n")
        left = [path] if stays else []
        words = slide_show(LECTURES_FOLDER, path, others)
    else:
        left = put_solved([options.part] if options.part else parts(), LECTURES_FOLDER, options.new)
        words = command(LECTURES_FOLDER, [*([f"--LabApp.default_url=/lab/tree/{options.part}.ipynb"] if options.part else []), *others])
    if left:
        print(f"Kept as they were: {', '.join(p.name for p in left)}. NEW=1 replaces them.")
    print(f"Opening {'the slides' if options.what == 'lecture' else 'JupyterLab'} in my_lectures/. Ctrl-C twice ends it.", flush=True)
    os.chdir(LECTURES_FOLDER)
    os.execve(words[0], words, LECTURE_ENVIRONMENT if options.what == "lecture" else environment())


if __name__ == "__main__":
    main()
