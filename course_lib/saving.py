"""Save a student's functions from a notebook's cells to the hand-in files, which later parts load.

The last code cells of an exercise notebook call `save`. It takes the functions as text from the ``%%px`` cells that were run, with
the imports, helpers and constants that they use.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import symtable
from collections.abc import Iterable
from pathlib import Path

from course_lib import students
from course_lib.students import NOTEBOOKS
from course_lib.utils.cell_syntax import parse_cell

IMPORT_NODES = (ast.Import, ast.ImportFrom)
FILE_HEADER = '"""Written by the course\'s notebooks: your functions, as you ran them last."""\n'


class SaveError(RuntimeError):
    """A function cannot be saved; the message says why."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mSaveError\x1b[0m: {self}"]


def save(ranks, *names: str, folder: str | Path = ".") -> None:
    """Save functions of this notebook to their hand-in files; the rest of each file is kept.

    Parameters
    ----------
    ranks : Ranks
        They must have run the cells that define the functions.
    names : str
        Names in `students.NOTEBOOKS`.
    folder : str or Path
        Folder of the files; by default the notebook's own.
    """
    there = _definitions_of_cells(ranks.cells)
    for file in sorted({NOTEBOOKS[name][1] for name in names}):
        mine = [name for name in names if NOTEBOOKS[name][1] == file]
        ready = [name for name in mine if not _is_unfinished(there.get(name))]
        unsure = [name for name in ready if name not in students.passed_exercises]
        if ready:
            _write(Path(folder) / file, ready, there, unsure)
            print(f"Saved to {file}: {', '.join(ready)}.")
        if unsure:
            said = "its check has" if len(unsure) == 1 else "their checks have"
            print(f"Not verified yet: {', '.join(unsure)}; {said} not passed since. Run the check, and then this cell again.")
        for why, names in (
            ("it is not finished", [name for name in mine if name not in ready and name in there]),
            ("the ranks do not have it (is %%px at the top of its cell?)", [name for name in mine if name not in there]),
        ):
            if names:
                print(f"Not saved, as {why}: {', '.join(names)}.")


def _is_unfinished(defined: ast.stmt | None) -> bool:
    """Return whether no cell defines a function or class, or its gaps are still as in the exercise."""
    if not isinstance(defined, (ast.FunctionDef, ast.ClassDef)):
        return True
    bodies = [n.body for n in ast.walk(defined) if isinstance(n, ast.FunctionDef)]
    return any(isinstance(body[-1], ast.Raise) and "NotImplementedError" in ast.unparse(body[-1]) for body in bodies)


def write(path: Path, names: list[str], cells: Iterable[str], unsure: Iterable[str] = ()) -> None:
    """Write functions and their dependencies to a file.

    Definitions of the same names are replaced, and the rest of the file is kept; the previous version of the file is kept with the
    suffix .bak.

    Parameters
    ----------
    path : Path
        A Python source file, which need not exist yet.
    names : list of str
        The functions.
    cells : iterable of str
        Source of the cells, in the order in which they were run.
    unsure : iterable of str
        Functions among them whose check has not passed; recorded in the file, for the parts that train with it.

    Raises
    ------
    SaveError
        A function uses a name that no cell defines, or a helper of which another saved function uses a different version; or
        a cell or the file is not valid Python.
    """
    _write(path, names, _definitions_of_cells(cells), unsure)


def sources_used(name: str, cells: Iterable[str]) -> list[str]:
    """Return the text of each definition in cells that a name leads to, itself included; the cells as they are if one cannot be read."""
    cells = list(cells)
    try:
        found = _definitions_of_cells(cells)
        used = _with_dependencies([name], found, complain=False)
    except SaveError:
        return cells
    return [ast.unparse(node) for node in used.values()]


def _write(path: Path, names: list[str], found: dict[str, ast.stmt], unsure: Iterable[str]) -> None:
    """Write functions to a file as `write` does, given all definitions of the cells."""
    new = _with_dependencies(names, found)
    before = path.read_text() if path.exists() else None
    old: dict[str, ast.stmt] = {}
    try:
        _add_definitions(old, before or "", ast.parse(before or ""))
    except SyntaxError as error:
        raise SaveError(
            f"{path} is not valid Python (line {error.lineno}): fix it or move it elsewhere, and run this cell again."
        ) from None
    for name in [n for n in new if n in old and ast.dump(old[n]) != ast.dump(new[n])]:
        users = [o for o in old if o in NOTEBOOKS and o not in new and name in _with_dependencies([o], old, complain=False)]
        if name not in names and users:
            raise SaveError(f"{path} has a different {name}, which {', '.join(users)} uses. Give yours another name.")
    text = _with_not_passed_list(_merged(before or FILE_HEADER, old, new), names, unsure)
    partial = path.with_name(path.name + ".part")
    partial.write_text(text)
    if before is not None and before != text:
        path.with_name(path.name + ".bak").write_text(before)
    os.replace(partial, path)  # atomic: the file is always complete


def _with_not_passed_list(text: str, names: list[str], unsure: Iterable[str]) -> str:
    """Update the file's list of functions whose check has not passed."""
    line = re.search(rf"\n*^{students.NOT_PASSED_NAME} = \[(.*)\]\n", text, re.MULTILINE)
    listed = set(re.findall(r"\w+", line[1]) if line else []) - set(names) | set(unsure)
    text = text.replace(line[0], "\n") if line else text
    return text + (f"\n\n{students.NOT_PASSED_NAME} = {sorted(listed)}\n" if listed else "")


def _merged(text: str, old: dict[str, ast.stmt], new: dict[str, ast.stmt]) -> str:
    """Replace old definitions in the file's text with the new ones; append definitions that are new."""
    lines, imports, rest = text.splitlines(), [], []
    present = {ast.unparse(node) for node in old.values() if isinstance(node, IMPORT_NODES)}
    replaced: dict[int, tuple[int, str]] = {}
    for name, node in new.items():
        if isinstance(node, IMPORT_NODES):
            imports += [ast.unparse(node)] if ast.unparse(node) not in present else []
        elif name in old and not isinstance(old[name], IMPORT_NODES):
            replaced[_first_line(old[name])] = old[name].end_lineno, node.text
        elif node.text not in rest:
            rest.append(node.text)
    for first, (last, body) in sorted(replaced.items(), reverse=True):  # from the end, so that line numbers stay valid
        lines[first - 1 : last] = body.splitlines()
    top = 0
    for node in ast.parse(text).body:  # imports follow the docstring and the existing imports
        if not (isinstance(node, IMPORT_NODES) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))):
            break
        top = node.end_lineno
    lines[top:top] = ["", *imports] if imports and top == 1 else imports
    return "\n\n\n".join(["\n".join(lines).rstrip("\n"), *rest]) + "\n"


def _definitions_of_cells(cells: Iterable[str]) -> dict[str, ast.stmt]:
    """Top-level definitions of the cells, by name; the last one of each name."""
    found: dict[str, ast.stmt] = {}
    for cell in cells:
        try:
            source, tree = parse_cell(re.sub(r"\A\s*%%.*", "", cell))
        except SyntaxError as error:
            begin = cell.strip()[:60]
            raise SaveError(f"the cell that begins with {begin!r} cannot be read: {error}") from None
        _add_definitions(found, source, tree)
    return found


def _add_definitions(found: dict[str, ast.stmt], source: str, tree: ast.Module) -> None:
    """Add the top-level definitions of a text; the last one of each name counts."""
    lines = source.splitlines()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, IMPORT_NODES):
            for alias in node.names:
                one = ast.Import([alias]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [alias], node.level)
                found[alias.asname or alias.name.split(".")[0]] = one
            continue
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        else:
            continue
        node.text = "\n".join(lines[_first_line(node) - 1 : node.end_lineno])
        for name in names:
            found.pop(name, None)
            found[name] = node


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def _with_dependencies(names: list[str], found: dict[str, ast.stmt], complain: bool = True) -> dict[str, ast.stmt]:
    """Definitions with these names, and those that they use, in the order of `found`."""
    needed, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name in needed:
            continue
        if name not in found:
            raise SaveError(f"no %%px cell that was run defines {name}.")
        needed.add(name)
        for used in _free_names(found[name]):
            if used in found:
                todo.append(used)
            elif complain and not hasattr(builtins, used):
                raise SaveError(
                    f"{name} uses {used}, which no %%px cell defines. Define or import it in a %%px cell, and run this one again."
                )
    return {name: node for name, node in found.items() if name in needed}


def _free_names(node: ast.stmt) -> set[str]:
    """Names that a definition reads but does not define (as seen by Python's own compiler)."""
    if isinstance(node, IMPORT_NODES):
        return set()
    free: set[str] = set()

    def visit(table: symtable.SymbolTable) -> None:
        for symbol in table.get_symbols():
            outside = symbol.is_global() if table.get_type() != "module" else symbol.is_referenced() and not symbol.is_assigned()
            if outside and symbol.is_referenced():
                free.add(symbol.get_name())
        for child in table.get_children():
            visit(child)

    top = symtable.symtable(ast.unparse(node), "cell", "exec")
    visit(top)
    own = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_namespace()}
    return free - own
