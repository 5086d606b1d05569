"""Flag lines of a submission that a person may want to read, without running it.

A flag costs no points, and most have a good reason. They are for what tests cannot see: code that reaches into the library, frames or
files, or a ready-made answer in place of an exercise.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat

from course_lib.cluster.source import cell as cells
from grading import tables
from grading.authoring import badges
from grading.authoring.build import kind_of
from grading.submission import notes
from grading.submission.assembly import ADDED_CELL_TAG

# Modules that no exercise asks for.
FLAGGED_MODULES = {
    "ast": "reads code",
    "builtins": "changes Python itself",
    "ctypes": "bypasses Python",
    "concurrent": "starts threads or processes",
    "dis": "reads code",
    "gc": "looks through all objects",
    "importlib": "imports by name",
    "inspect": "looks at callers or code",
    "mmap": "keeps memory elsewhere",
    "multiprocessing": "starts processes, or shares memory",
    "os": "accesses the operating system",
    "pathlib": "reads or writes files",
    "pickle": "makes objects out of bytes",
    "resource": "reads or changes resource limits",
    "shutil": "reads or writes files",
    "signal": "changes how interrupts are handled",
    "socket": "opens connections",
    "subprocess": "starts programs",
    "_thread": "starts threads",
    "sys": "accesses the interpreter",
    "tempfile": "reads or writes files",
    "threading": "starts threads",
    "tracemalloc": "changes how memory is traced",
    "weakref": "follows objects",
}
FLAGGED_CALLS = {"open", "exec", "eval", "compile", "__import__", "globals", "get_ipython", "vars"}
INTROSPECTION_NAME = re.compile(
    r"^(_getframe|f_back|f_locals|f_globals|f_builtins|tb_frame|gi_frame|cr_frame|__(globals|code|closure|subclasses|builtins|dict)__)$"
)
PRIVATE = re.compile(r"^_[^_]")
INTERNAL_MODULES = (
    *("course_lib.check", "course_lib.cluster", "course_lib.engine", "course_lib.memory", "course_lib.sandbox", "course_lib.traffic"),
    *(
        "course_lib.collectives.progress",
        "course_lib.collectives.transport",
        "course_lib.sim.schedule.check",
        "course_lib.sim.schedule.replay",
    ),
)
READY_MADE_ANSWERS = {"DistributedDataParallel", "StaticScheduler"}  # answers that the library has, for later parts
READY_MADE_IN = {"09_zero3_adam": {"Adam"}}  # those that only one part asks for
DOORS = {"builtins", "ctypes", "ctypeslib", "gc", "importlib", "inspect", "os", "subprocess", "sys"}  # reached through other modules
FILE_METHODS = {"fromfile", "load_library", "memmap", "tofile"}
HIDDEN_TESTS_NAMES = {"trial", "trials", "twin", "twin_output"}  # variables of hidden tests on the ranks
MAX_NAME_CHARS = 80  # of a string that may be a name, or a part of one
USUAL_STRINGS = {"__main__", "__init__"}
TABLE = "flagged.csv"
MAX_CELL_CHARS = 200_000  # characters of a cell that is read
MOST_FLAGS = 100  # of a hand-in
MAX_LINE_CHARS = 160  # characters of a line that are shown


class Flag(NamedTuple):
    """A line, and the reason to read it."""

    cell: str
    line: int
    text: str
    why: str


def find_flags(notebook: nbformat.NotebookNode, source: nbformat.NotebookNode) -> list[Flag]:
    """Return the flags of a notebook from `assembly.assemble`, except for lines that are in the release."""
    released = {cell.id: {line.strip() for line in cell.source.splitlines()} for cell in source.cells}
    part = source.metadata.get("course", {}).get("part", "")
    written = {cells.read(cell.source).file for cell in notebook.cells if notes.runs(cell)}
    found = []
    install = badges.install_source()
    for cell in notebook.cells:
        if cell.source == install:
            continue
        found += [Flag(cell.id, 1, text, why) for why, text in notes.notes_of(cell)]
        if cell.cell_type == "code" and (kind_of(cell) in ("exercise", "example") or ADDED_CELL_TAG in cell.metadata.get("tags", [])):
            of_cell = flags_of_cell(cell.id, cell.source, written, part)
            found += [flag for flag in of_cell if flag.text not in released.get(cell.id, ())]
    if len(found) > MOST_FLAGS:
        last = found[MOST_FLAGS]
        found[MOST_FLAGS:] = [Flag(last.cell, last.line, "", f"and {len(found) - MOST_FLAGS:,} more lines, from here on")]
    return found


def flags_of_cell(name: str, source: str, written: Collection[str] = (), part: str = "") -> list[Flag]:
    """Return the flags of one cell; `written` are the files that cells of the notebook write."""
    if len(source) > MAX_CELL_CHARS:
        return [Flag(name, 1, source[:MAX_LINE_CHARS].strip(), f"has {len(source):,} characters")]
    lines = source.splitlines()
    commands = [re.match(r"\s*[%!]", line) and not cells.is_px(line) for line in lines]
    magics = [number for number, is_command in enumerate(commands, 1) if is_command]
    found = {i: "is not Python: a command of IPython or of the system" for i in magics}
    try:
        tree = ast.parse(cells.without_magics("\n".join(lines)))
        imported = _imported(tree)
        own = _own_names(tree)
        for node in ast.walk(tree):
            why = _why(node, imported) or _not_here(node, written) or _other_ways(node, own, part)
            if why:
                found.setdefault(node.lineno, why)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found.setdefault(1, "cannot be read as Python")
    return [Flag(name, i, lines[i - 1].strip()[:MAX_LINE_CHARS], why) for i, why in sorted(found.items())]


def _imported(tree: ast.AST) -> dict[str, str]:
    """Return the names that a cell imports, and from where."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({(a.asname or a.name).split(".")[0]: a.name for a in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    return names


def _why(node: ast.AST, imported: dict[str, str]) -> str | None:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [f"{node.module}.{a.name}" for a in node.names]
        for module in modules:
            if why := FLAGGED_MODULES.get(module.split(".")[0]):
                return f"imports {module.split('.')[0]}: {why}"
            if module.startswith(INTERNAL_MODULES):
                return f"imports {module}: the code that grades, or that runs the ranks"
            if module.split(".")[-1] in READY_MADE_ANSWERS:
                return f"imports {module.split('.')[-1]}: a ready-made answer"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FLAGGED_CALLS:
        return f"calls {node.func.id}"
    if isinstance(node, ast.Attribute) and node.attr == "run" and _is_name(node.value, "ranks"):
        return "uses ranks.run: no cell of the notebook's kernel runs when graded"
    if isinstance(node, ast.Attribute):
        if INTROSPECTION_NAME.match(node.attr):
            return f"uses {node.attr}: internals of functions or objects"
        if node.attr == "COMM_WORLD":
            return "uses COMM_WORLD: bypasses the communicator that counts"
        if PRIVATE.match(node.attr) and not _is_own(node.value):
            return f"uses {node.attr}, which is private"
        if node.attr == "modules" and isinstance(node.value, ast.Name) and imported.get(node.value.id) == "sys":
            return "uses sys.modules"
        if isinstance(node.ctx, (ast.Store, ast.Del)) and (module := _root(node, imported)):
            return f"writes into {module}"
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and INTROSPECTION_NAME.match(node.value):
        return f"names {node.value}: internals of functions or objects"
    return None


def _own_names(tree: ast.AST) -> set[str]:
    """Return the names that a cell assigns to, or has as parameters."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return stored | parameters


def _other_ways(node: ast.AST, own: set[str], part: str) -> str | None:
    """Return a reason to look at what reaches internals, files or a ready-made answer in a less usual way."""
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if alias.name in READY_MADE_IN.get(part, ()):
                return f"imports {alias.name}: a ready-made answer"
    if isinstance(node, ast.Attribute) and node.attr in DOORS:
        return f"uses {node.attr} through another module"
    if isinstance(node, ast.Attribute) and node.attr in FILE_METHODS:
        return f"calls {node.attr}: reads or writes files, or bypasses Python"
    if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and not _is_false(node.value):
        return "allows pickles: makes objects out of bytes"
    if isinstance(node, ast.MatchClass):
        names = [name for name in node.kwd_attrs if INTROSPECTION_NAME.match(name)]
        if names:
            return f"matches {names[0]}: internals of functions or objects"
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in HIDDEN_TESTS_NAMES - own:
        return f"reads {node.id}, a variable of the hidden tests"
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in USUAL_STRINGS:
        text = node.value
        if "__" in text and len(text) <= MAX_NAME_CHARS and "\n" not in text:
            return f"has the text {text!r}: a name of internals, or a part of one"
    return None


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _not_here(node: ast.AST, written: Collection[str]) -> str | None:
    """Return a reason to look at an import that works only beside the student's own files."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names = [node.module]
    for name in names:
        top = name.partition(".")[0]
        with contextlib.suppress(ImportError, ValueError):  # such as of `__main__`
            if f"{top}.py" not in written and importlib.util.find_spec(top) is None:
                return f"imports {top}: not installed, and a hand-in is the notebook only"
    return None


def _is_own(node: ast.expr) -> bool:
    """Return whether an expression is self, cls or super()."""
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _root(node: ast.Attribute, imported: dict[str, str]) -> str | None:
    """Return the imported name that is written to: `check.Check.fail = ...` writes into course_lib.check."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return imported.get(node.id) if isinstance(node, ast.Name) else None


def write_table(home: Path) -> Path | None:
    """Write the flags of all graded notebooks to a table in `home`; return its path, or None if there are none."""
    rows = list(_rows(home))
    path = home / TABLE
    if not rows:
        path.unlink(missing_ok=True)
        return None
    tables.write(path, [("student", "part", "cell", "line", "why", "text"), *rows])
    return path


def flags_of_submission(student: str, part: str, home: Path) -> list[Flag]:
    """Return the flags of a graded submission."""
    try:
        course = json.loads((home / "autograded" / student / part / f"{part}.ipynb").read_bytes())["metadata"]["course"]
        return [Flag(*flag) for flag in course["flags"]]
    except Exception:  # an interrupted run has left half a notebook
        return []


def _rows(home: Path) -> Iterator[tuple]:
    for path in sorted((home / "autograded").glob("*/*/*.ipynb")):
        student, part = path.parts[-3:-1]
        if path.stem == part:
            yield from ((student, part, cell, line, why, text) for cell, line, text, why in flags_of_submission(student, part, home))
