"""First lines of docstrings: an imperative or a noun phrase."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("course_lib", "grading", "hub", "lectures", "docs", "benchmarks", "tests")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
RELATIVE = re.compile(r"(Of|What|Whether|Whose|Which|How|Where|Who|Why)\b")


@pytest.mark.parametrize("package", PACKAGES)
def test_none_begins_with_a_relative_word(package):
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / package).rglob("*.py"))}
    found = {
        path: [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, DOCUMENTED)] for path, tree in trees.items()
    }
    assert sum(map(len, found.values())) > 10
    assert not [f"{path.relative_to(ROOT)}: {text[:60]}" for path, texts in found.items() for text in texts if RELATIVE.match(text)]
