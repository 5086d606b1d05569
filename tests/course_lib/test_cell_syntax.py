"""Cells as plain Python: as IPython translates them, and in a time that does not grow with the number of magics."""

import ast
import random

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from course_lib.utils import cell_syntax
from course_lib.utils.cell_syntax import parse_cell

LINES = (
    *("%matplotlib inline", "!ls", "x = %a", "x = !ls", "len?", "?len", "x.y??", "%a?", "%%time"),
    *("def f():", "class A:", "if 1:", "    pass", "    %time x", "    !ls \\", "  y", "import os"),
    *('!echo "a', '!echo """', "!echo it's", '"""', "a = '''", "'", "(", "x = [", "]", "", "#c"),
    *("x = 1", ">>> x = 1", "f = %a \\", "!a {b}", "/f 1", ",f a"),
)


def as_ipython_does(source):
    """The cell after IPython's own translation; None if it is not Python then."""
    try:
        ast.parse(source)
        return source
    except SyntaxError:
        pass
    try:
        text = TransformerManager().transform_cell(source)
        ast.parse(text)
        return text
    except SyntaxError:
        return None


@pytest.mark.parametrize("seed", range(3))
def test_a_cell_is_translated_as_ipython_does(seed):
    drawn = random.Random(seed)
    for _ in range(1500):
        source = "\n".join(drawn.choices(LINES, k=drawn.randrange(1, 9)))
        try:
            text = parse_cell(source)[0]
        except SyntaxError:
            text = None
        assert text == as_ipython_does(source), source


@pytest.fixture
def read(monkeypatch):
    """Characters in each reading of a cell: they are counted, as a machine may be slow."""
    sizes = []

    def count(lines):
        sizes.append(sum(map(len, lines)))
        return make_tokens_by_line(lines)

    make_tokens_by_line = cell_syntax.make_tokens_by_line
    monkeypatch.setattr(cell_syntax, "make_tokens_by_line", count)
    return sizes


@pytest.mark.parametrize(
    ("source", "readings"),
    [("x = %a\n" * 400 + "y = 1\n" * 3000, 2), ("!echo it's\n" * 60, 61)],
)
def test_a_cell_is_not_read_again_for_each_magic(read, source, readings):
    assert len(parse_cell(source)[1].body) == source.count("\n")
    assert len(read) == readings


@pytest.mark.parametrize(
    "source",
    ["x = %a\n" * 7000, "x?\n" * 7000, "!echo it's\n" * 400 + "y = 1\n" * 6000, "%a\n" * 20_000],
)
def test_a_cell_of_many_magics_is_refused(read, source):
    with pytest.raises(SyntaxError, match=r"more than (500 magics|50,000 characters)"):
        parse_cell(source)
    assert sum(read) < 2 * cell_syntax.MAX_CHARACTERS_READ


@pytest.mark.parametrize("source", ["a" + ".b" * 100_000, "-" * 100_000 + "1", "x = '\0'", "(" * 100_000])
def test_what_python_cannot_read_is_a_syntax_error(source):
    with pytest.raises(SyntaxError):
        parse_cell(source)
