"""None of the functions in the students' archive, called in place of an exercise, gets its points."""

import ast
import importlib
import inspect

import pytest

from grading import answers, archive, build
from grading.paths import ROOT, parts
from grading.variants import Part

# These start and end processes, and talk to the kernel; called on a rank they would end it.
NOT_CALLED = ("course_lib.cluster", "course_lib.engine", "course_lib.tools")


def library():
    """The functions and classes that a student's copy has, in its modules and in the helpers of its tests: (module, name, object)."""
    found = []
    for path in archive.files():
        if path.suffix != ".py" or path.parts[0] not in ("course_lib", "tests") or path.stem.startswith(("test_", "conftest", "__main__")):
            continue
        words = path.with_suffix("").parts if path.parts[0] == "course_lib" else (path.stem,)
        module = ".".join(words[:-1] if words[-1] == "__init__" else words)
        if module.startswith(NOT_CALLED):
            continue
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name != "main":
                found.append((module, node.name, getattr(importlib.import_module(module), node.name)))
    return found


def fits(candidate, wanted):
    """Whether it can be called as the exercise is, and is of its kind."""
    if inspect.isclass(candidate) and not inspect.isclass(wanted) and issubclass(candidate, BaseException):
        return False
    try:
        inspect.signature(candidate).bind(*[None] * len(needed(wanted)))
    except (TypeError, ValueError):
        return False
    return not inspect.isclass(wanted) or inspect.isclass(candidate)


def needed(function):
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def exercises(part):
    """Each function, class and method that has a gap: (function or class, method or "", an object with its signature)."""
    found = []
    for cell in build.build(part).cells:
        if build.kind_of(cell) != "exercise":
            continue
        source = cell.source.removeprefix("%%px")
        for node in ast.parse(source).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append((node.name, "", signature_of(node)))
            elif isinstance(node, ast.ClassDef):
                methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
                found.append((node.name, "", type(node.name, (), {m.name: signature_of(m) for m in methods if m.name == "__init__"})))
                for method in methods:
                    text = ast.get_source_segment(source, method)
                    if "### BEGIN SOLUTION" in text and method.name != "__init__":
                        found.append((node.name, method.name, signature_of(method, skip=1)))
    return found


def signature_of(node, skip=0):
    """A function with the parameters of this one, and an empty body."""
    arguments = ast.unparse(node.args).split(", ")[skip:] if node.args.args else []
    namespace = {}
    exec(f"def f({', '.join(arguments)}): pass", namespace)
    return namespace["f"]


@pytest.mark.parametrize("part", [p for p in parts() if answers.read(p)])
def test_no_function_of_the_archive_is_an_answer(part, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests")
    tried = 0
    with Part(part) as running:
        running.answer(f"import sys\nsys.path.append({str(ROOT / 'tests')!r})")
        for name, method, wanted in exercises(part):
            cell = running.exercise(name).source
            empty = f"{name}.{method} = None" if method else f"{name} = None"
            running.answer(f"{cell}\n\n{empty}")
            nothing, _ = running.points()
            for module, other, candidate in library():
                if not fits(candidate, wanted):
                    continue
                target = f"{name}.{method} = lambda self, *a: theirs(*a)" if method else f"{name} = theirs"
                running.answer(f"{cell}\n\n{empty}\nfrom {module} import {other} as theirs\n{target}")
                points, _ = running.points()
                tried += 1
                assert points <= nothing, (
                    f"{module}.{other} in place of {name}{'.' if method else ''}{method} gets {points - nothing:g} points"
                )
            running.answer(cell)
    assert tried
