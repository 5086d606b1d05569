"""Limits of hidden tests stand in the exercises' docstrings, and each limit on bytes or calls is one of these."""

import ast
import re
from pathlib import Path

import pytest

from course_lib import check
from course_lib.check.cases import KINDS
from grading.authoring import build, contracts
from grading.paths import ROOT, parts
from grading.variants import defined_names

CHECKS = sorted(Path(check.__path__[0]).rglob("*.py"))
LIMITS = contracts.limits()
DOCUMENTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def docstrings() -> dict[str, str]:
    """Return the docstrings of all exercises, by name, in one line each, with those of their methods."""
    texts = {}
    for source in sorted((ROOT / "solutions").glob("*/[0-9]*.py")):
        for cell in build.build(source.parent.name).cells:
            if build.kind_of(cell) != "exercise":
                continue
            tree = ast.parse(re.sub(r"^%%px.*", "", cell.source, flags=re.MULTILINE))
            for node in tree.body:
                if isinstance(node, DOCUMENTED):
                    parts = [node, *(method for method in node.body if isinstance(method, DOCUMENTED))]
                    text = " ".join(ast.get_docstring(part) or "" for part in parts)
                    texts[node.name] = " ".join(text.split())
    return texts


@pytest.fixture(scope="module")
def texts():
    return docstrings()


@pytest.mark.parametrize("name", LIMITS)
def test_the_exercise_states_each_limit_with_its_number(name, texts):
    limit = LIMITS[name]
    assert limit.text in texts[limit.exercise]


@pytest.mark.parametrize("name", LIMITS)
def test_a_failed_check_quotes_a_whole_sentence(name, texts):
    """Half of one, such as "in at most 8 calls.", explains nothing to a student."""
    limit = LIMITS[name]
    text = texts[limit.exercise]
    before = text[: text.index(limit.text)].rstrip()
    assert limit.text.endswith(".")
    assert not before or before[-1] in ".-" or limit.text[0].isupper()


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_is_one_that_a_check_compares_with(name):
    room, constant = name.rsplit(".contract.", 1)
    constant = constant.partition(".")[0]  # of a dict, without the key
    folder = ROOT / room.replace(".", "/")
    paths = [path for path in folder.glob("*.py") if path.name != "contract.py"]
    paths += (ROOT / "solutions").glob("*/[0-9]*.py")
    sources = [path.read_text() for path in paths]
    use = rf"\bcontract(\.| import [\w, ]*\b){constant}\b"
    assert any(re.search(use, source) for source in sources)


def test_each_check_of_bytes_or_calls_has_a_limit():
    bare = []
    for path in CHECKS:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            keywords = {keyword.arg for keyword in node.keywords}
            of_a_check = isinstance(node.func.value, ast.Name) and node.func.value.id in ("self", "check")
            if of_a_check and node.func.attr in ("sent", "calls") and "limit" not in keywords:
                bare.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not bare


def test_each_graded_exercise_has_a_contract():
    graded = set()
    for part in parts():
        cells = build.build(part).cells
        if any(build.kind_of(cell) == "test" for cell in cells):
            graded |= {name for cell in cells if build.kind_of(cell) == "exercise" for name in defined_names(cell)}
    assert graded
    assert graded <= set(contracts.reasons())


def test_a_kind_that_is_not_drawn_exists_and_has_a_reason(texts):
    for exercise, kinds in contracts.reasons().items():
        assert exercise in texts
        assert set(kinds) <= set(KINDS)
        assert all(len(reason) > 10 for reason in kinds.values())
