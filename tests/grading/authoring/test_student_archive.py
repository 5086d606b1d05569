"""None of the functions in the students' archive, called in place of an exercise, gets its points."""

import ast
import importlib
import inspect
import os
import sys
from functools import cache

import numpy as np
import pytest

from grading import variants
from grading.authoring import archive, build
from grading.paths import ROOT, SOLUTIONS, parts
from grading.variants import RunningPart

# These start and end processes, and talk to the kernel, or to the broker; called on a rank they would end it.
NO_DATA = ("str", "Path", "Callable", "dict[str", "Iterable[str")  # no exercise is given a text or a file
NOT_CALLED = (
    "course_lib.check.cases.process_state",  # puts what it is given in the place of the library's variables
    "course_lib.check.checkpoint.files.leftover_files",  # makes files for as many ranks as its second argument
    "course_lib.cluster",
    "course_lib.collectives.deadlock.agent",
    "course_lib.collectives.deadlock.host_agents",
    "course_lib.collectives.instrumentation.silences",  # stands still
    "course_lib.collectives.transport.isolated",
    "course_lib.collectives.transport.messenger",  # waits for the other ranks' messages
    "course_lib.engine",
    "course_lib.gpt.serving.command",
    "course_lib.gpt.serving.server",
    "course_lib.utils.progress",  # IPython's DisplayObject opens a small number as a file, and reads from whatever that is
    "course_lib.tools",
    "processes",
    "machine",
    "transports",  # runs cells on ranks that it is given
    "fake_cupy",
)


def modules():
    """The modules that a student's copy has, with the helpers of its tests."""
    files = [path for path in archive.files() if path.suffix == ".py" and path.parts[0] in ("course_lib", "tests")]
    return [path for path in files if not path.stem.startswith(("test_", "conftest", "__main__"))]


def helper_folders():
    """The folders in which the helpers of a student's tests are."""
    return sorted({str((ROOT / path).parent) for path in modules() if path.parts[0] == "tests"})


@cache
def library():
    """The functions and classes that a student's copy has, in its modules and in the helpers of its tests: (module, name, object)."""
    found = []
    for path in modules():
        words = path.with_suffix("").parts if path.parts[0] == "course_lib" else (path.stem,)
        module = ".".join(words[:-1] if words[-1] == "__init__" else words)
        if module.startswith(NOT_CALLED):
            continue
        for node in ast.parse((ROOT / path).read_text()).body:
            if f"{module}.{getattr(node, 'name', '')}" in NOT_CALLED:
                continue
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name != "main":
                found.append((module, node.name, getattr(importlib.import_module(module), node.name)))
    return found


def fits(candidate, wanted):
    """Tell whether it can be called as the exercise is, and is of its kind."""
    if inspect.isclass(candidate) and not inspect.isclass(wanted) and issubclass(candidate, BaseException):
        return False
    try:
        bound = inspect.signature(candidate).bind(*[None] * len(needed(wanted)))
    except (TypeError, ValueError):
        return False
    first = next(iter(bound.arguments), None)
    if str(getattr(candidate, "__annotations__", {}).get(first)).startswith(NO_DATA):
        return False
    return not inspect.isclass(wanted) or (inspect.isclass(candidate) and all(hasattr(candidate, m) for m in wanted.methods))


def may_be_awaited(candidate):
    """Tell whether what it returns can be awaited: it is a coroutine function, a class with `__await__`, or uses one by its name."""
    if inspect.isclass(candidate):
        return hasattr(candidate, "__await__")
    return inspect.iscoroutinefunction(candidate) or bool({*inspect.unwrap(candidate).__code__.co_names} & coroutines())


@cache
def coroutines():
    """The names of all coroutine functions, and of the classes that can be awaited."""
    trees = [ast.parse((ROOT / path).read_text()) for path in modules()]
    functions = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)}
    return functions | {name for _, name, it in library() if inspect.isclass(it) and hasattr(it, "__await__")}


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
                init = {m.name: signature_of(m) for m in methods if m.name == "__init__"}
                given = {m.name for m in methods if m.name[0] != "_" and f"def {m.name}(" in variants._STUB.sub("pass", source)}
                found.append((node.name, "", type(node.name, (), init | {"methods": given})))
                for method in methods:
                    text = ast.get_source_segment(source, method)
                    # Without the object, none can do what needs its attributes.
                    if "### BEGIN SOLUTION" in text and "self." not in text:
                        found.append((node.name, method.name, signature_of(method, skip=1)))
    return found


def signature_of(node, skip=0):
    """A function with the parameters of this one, and an empty body; defaults may name what is only there on the ranks."""
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    arguments = ast.unparse(node.args).split(", ")[skip:] if node.args.args else []
    namespace = {"np": np}
    exec(f"def f({', '.join(arguments)}): pass", namespace)
    return namespace["f"]


ISOLATED = ("37_survival",)  # parts whose hidden tests need the virtual time of isolated ranks
CALLS = 4  # that are looked at, of those on groups of more than one rank

SPY = """
import copy, importlib, inspect, sys
from course_lib.collectives import Communicator, Messenger
sys.path += {folders!r}
{key}_theirs, {key}_seen, CALLS, LARGE = {place}, [], {calls}, 10_000
def {key}_spy(*args, **kwargs):
    alone = any(isinstance(a, Communicator) and a.Get_size() == 1 for a in args)
    large = sum(getattr(a, "size", 0) for a in (*args, *kwargs.values())) > LARGE  # pictures of them take minutes
    if len({key}_seen) < CALLS and not alone and not large:
        {key}_seen.append([copy_of(a) for a in inspect.signature({key}_theirs).bind(*args, **kwargs).arguments.values()])
    return {key}_theirs(*args, **kwargs)
def copy_of(value):
    return copy.deepcopy(value)
Communicator.__deepcopy__ = Messenger.__deepcopy__ = lambda self, memo: self
{place} = {key}_spy
def seen():
    return [len(calls) for name, calls in globals().items() if name.endswith("_seen")]
"""

PROBE = """
import numpy as np
def same(a, b):
    if isinstance(a, (tuple, list)):
        return isinstance(b, (tuple, list)) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.shape == b.shape and bool(np.allclose(a, b, equal_nan=a.dtype.kind in "fc"))
    if type(a).__name__ == "Tensor":
        return same(a.data, getattr(b, "data", None))
    return type(a) is type(b) and not callable(a) and a == b

def slots(kind):
    return [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]

def arrays(value, seen):
    # All arrays in a value, and in the objects that it has.
    if isinstance(value, np.ndarray):
        return [value]
    if id(value) in seen or isinstance(value, type) or callable(value) and not hasattr(value, "__dict__"):
        return []
    seen.add(id(value))
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else [
        getattr(value, name, None) for name in (*getattr(value, "__dict__", ()), *slots(type(value)))
    ]
    return [array for one in inner for array in arrays(one, seen)]

def left_by(function, args):
    # The arrays in what a function returns and in its arguments afterwards.
    given = copy_of(args)
    return arrays([function(*given), given], set())

def has_all(wanted, found):
    return all(any(same(array, other) for other in found) for array in wanted)

def probe(candidates, call):
    # In one of the first calls: which of them give what the solution gives; where that is no plain value, which leave its arrays
    # in the result and the arguments.
    try:
        args = {key}_seen[call]
        want = {key}_theirs(*copy_of(args))
        wanted, again = (left_by({key}_theirs, args) for _ in range(2))  # on all ranks: it may be no plain value on some
    except Exception:  # not called on this rank, or in a group that is no more
        return None
    own, plain = args[{skip}:], isinstance(want, (tuple, list, np.ndarray, int, float, np.number)) or type(want).__name__ == "Tensor"
    if {skip} and want is None:
        return True, []  # what changes its object cannot be done without it
    if plain and same(want, own[0]):
        return None  # to give back what came is an answer that many have
    if not has_all(wanted, again):
        wanted = []  # it is not the same twice: all that can be called at all are tried
    found = []
    for candidate in candidates:
        module, other = candidate
        try:
            function = getattr(importlib.import_module(module), other)
            got = function(*copy_of(own)) if plain else left_by(function, own)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            continue
        if same(want, got) if plain else has_all(wanted, got):
            found.append(candidate)
    return plain, found
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", [p for p in parts() if (SOLUTIONS / p / "variants.py").exists()])
def test_no_function_of_the_archive_is_an_answer(part, monkeypatch):
    """Each is given what the exercise is given, and must not give what the solution gives; classes and loops go through the tests."""
    for folder in helper_folders():
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(variants, "VARIANT_CELL_SECONDS", 180)  # hundreds of functions, some of which draw
    if part not in ISOLATED:  # ranks as students have them, which find the archive's tests, too
        monkeypatch.setattr(variants.sandbox, "sandbox_variables", dict)
    tried, spied = 0, {}
    with RunningPart(part) as running:
        todo = exercises(part)
        for name, method, wanted in todo:
            cell = running.exercise(name)
            if not inspect.isclass(wanted) and "async def" not in cell.source:
                place = f"{name}.{method}" if method else name
                spy = SPY.format(key=place.replace(".", "_"), place=place, folders=helper_folders(), calls=CALLS)
                spied[cell.id] = spied.get(cell.id, cell.source) + spy
        for source in spied.values():
            running.answer(source)
        for test in running.cells["test"]:
            given, said = running._earned(test)
            assert given == test.metadata.nbgrader.points, said
            if not spied or shown(running, "min(map(min, zip(*ranks.call('seen'))))") >= CALLS:
                break
        assert not spied or shown(running, "min(map(max, zip(*ranks.call('seen'))))"), "an exercise without a small call"
        for name, method, wanted in todo:
            cell, place = running.exercise(name), f"{name}.{method}" if method else name
            asynchronous = "async def" in cell.source
            fitting = [c for c in library() if fits(c[2], wanted) and (not asynchronous or may_be_awaited(c[2]))]
            candidates = [(module, other) for module, other, _ in fitting]
            tried += len(candidates)
            if not inspect.isclass(wanted) and not asynchronous:
                running.answer(PROBE.format(key=place.replace(".", "_"), skip=int(bool(method))))
                candidates = like_the_solution(running, candidates)
            nothing = earned(running, cell, place) if candidates else 0
            assert nothing < running.maximum()
            found = [c for c in candidates if earned(running, cell, place, *c) > nothing]
            assert not found, f"{found} in place of {place}"
            if candidates:
                running.answer(cell.source)
    assert tried or all(inspect.isclass(wanted) for *_, wanted in exercises(part))  # a class may have methods of its own


def like_the_solution(running, candidates):
    """Those that do what the solution does in each of the first calls, on all ranks that can tell; none where no call can."""
    told = False
    for call in range(CALLS):
        if not candidates:
            break
        each = [found for found in shown(running, f"ranks.call('probe', dict(candidates={candidates!r}, call={call}), limit=900)") if found]
        for plain, found in each:
            if plain or not any(p for p, _ in each):
                told, candidates = True, [candidate for candidate in candidates if candidate in found]
    return candidates if told else []


def shown(running, expression):
    """A value of the kernel."""
    cell = running._run(f"print(repr({expression}))")
    assert not [o for o in cell.outputs if o.output_type == "error"], cell.outputs
    return ast.literal_eval("".join(o.text for o in cell.outputs if o.get("name") == "stdout"))


def earned(running, cell, place, module="", other=""):
    """The points of the tests that an exercise decides, with a function in its place, or with nothing there."""
    only = running.tests_decided_by(cell)  # it leaves the solution there
    theirs = f"from {module} import {other} as theirs" if module else "theirs = None"
    source = cell.source.removeprefix("%%px")
    running.answer(f"import sys\nsys.path += {helper_folders()!r}\n{source}\n\n{theirs}\n{place} = theirs")
    return running.points(only)[0]


PLANTED = {"03_naive_forward": "naive_collect_forward_input", "22_sequence_parallel": "reduce_norm_gradients", "24_experts": "route"}


@pytest.mark.slow
@pytest.mark.parametrize("part", PLANTED)
def test_an_answer_in_the_archive_would_be_found(part, monkeypatch, tmp_path):
    solution = f"get_ipython().user_ns[{PLANTED[part] + '_theirs'!r}]"
    (tmp_path / "planted.py").write_text(f"def planted(*args, **kwargs):\n    return {solution}(*args, **kwargs)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    planted = [("planted", "planted", importlib.import_module("planted").planted)]
    monkeypatch.setattr(f"{__name__}.library", lambda: planted)
    try:
        with pytest.raises(AssertionError, match=r"\('planted', 'planted'\)\] in place of"):
            test_no_function_of_the_archive_is_an_answer(part, monkeypatch)
    finally:
        sys.modules.pop("planted")
