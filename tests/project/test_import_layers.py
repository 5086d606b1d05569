"""The layers of imports: each package uses only those below it, and there are no circles."""

import ast
import functools
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the top down. A package may use those below it; the packages of one line know nothing of each other.
LAYERS = (
    ("tools",),
    ("training", "sim"),
    ("check",),
    ("cluster",),
    ("engine",),
    ("gpt",),
    ("ddp", "zero"),
    ("layers", "saving", "replica"),
    ("collectives",),
    ("plots",),
    ("autograd",),
    ("students", "placement"),
    ("trace",),
    ("mesh", "traffic", "memory", "datasets"),
    ("sandbox", "utils", "former_names"),
)


def modules(package):
    """Every module of a package by its dotted name."""
    names = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        words = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return names


def imports(name, path, known):
    """The modules of the project that a module imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: imports are written in full"
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                found.add(inside if inside in known else node.module)
    return {f for f in found if f in known and f != name}  # a function that is sent to the ranks imports its own module


PACKAGES = ("benchmarks", "docs", "lectures", "hub", "grading", "course_lib")  # each may use those behind it
KNOWN = {name: path for package in PACKAGES for name, path in modules(package).items()}


@functools.cache
def graph():
    """The modules that each module imports."""
    return {name: imports(name, path, KNOWN) for name, path in KNOWN.items()}


def test_no_two_modules_need_each_other():
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as circle:
        pytest.fail(f"a circle of imports: {' -> '.join(reversed(circle.args[1]))}")


def test_a_package_uses_only_those_below_it():
    layer = {package: i for i, packages in enumerate(LAYERS) for package in packages}
    packages = {name.split(".")[1] for name in KNOWN if name.startswith("course_lib.")}
    assert packages == set(layer), "a package without a layer, or a layer without a package"
    for name, used in graph().items():
        if name.startswith("course_lib."):
            mine = name.split(".")[1]
            for other in used - {"course_lib"}:
                assert other.startswith("course_lib."), f"{name} imports {other}"
                theirs = other.split(".")[1]
                assert theirs == mine or layer[theirs] > layer[mine], f"{name} imports {other}, which is above it"


def test_arrows_between_packages_go_one_way():
    for name, used in graph().items():
        mine = PACKAGES.index(name.split(".")[0])
        assert not [other for other in used if PACKAGES.index(other.split(".")[0]) < mine], name


FILES = 10  # of a package, and of a subpackage
LARGER = {"grading": 11, "grading/collecting": 11}


def test_packages_stay_small():
    """A package has so few files that a reader sees them at a glance; those that are larger may shrink, not grow."""
    packages = Counter(str(path.parent.relative_to(ROOT)) for path in KNOWN.values() if path.name != "__init__.py")
    large = {package: n for package, n in packages.items() if n > LARGER.get(package, FILES)}
    assert not large, large


def test_functions_stay_short():
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [(name, node) for name, path in KNOWN.items() for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    long = {f"{name}.{node.name}": n for name, node in functions if (n := node.end_lineno - node.lineno + 1) > 70}
    assert not long, long


def test_importing_the_engine_starts_nothing():
    for name in ("engine", "engine.processes.stub", "engine.serialization", "engine.requests.handler"):
        todo, seen = [f"course_lib.{name}"], set()
        while todo:
            module = todo.pop()
            top = ast.parse(KNOWN[module].read_text()).body
            words = {a.name for n in top if isinstance(n, ast.Import) for a in n.names}
            words |= {n.module for n in top if isinstance(n, ast.ImportFrom)}
            assert "mpi4py" not in words, f"{module} starts MPI when it is imported, and the zygote could not fork"
            seen.add(module)
            todo += [
                w
                for w in words | {f"{n.module}.{a.name}" for n in top if isinstance(n, ast.ImportFrom) for a in n.names}
                if w in KNOWN and w not in seen
            ]


def test_what_ranks_import_of_the_checks_loads_nothing_of_the_notebooks_side():
    """Otherwise a rank holds megabytes before it is measured, and a right answer loses points."""
    names = "on_ranks", "reference", "file_tracer", "virtual_group"
    files = [path for name in names for path in (ROOT / "course_lib" / "check").rglob(f"{name}.py")]
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    assert len(modules) > 6
    program = f"import {', '.join(modules)}, sys\nprint([name for name in sys.modules if name.startswith('course_lib.cluster')])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "[]"
