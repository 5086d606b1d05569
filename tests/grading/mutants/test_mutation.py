"""Mutants of a solution: which changes are made, and where."""

import ast

import pytest

from grading.mutants import mutation, records

CELL = '''%%px
def mean(x, comm, n=4):
    """The mean: not 3."""
    if n < 0:
        raise ValueError(n)
    ### BEGIN SOLUTION
{}
    ### END SOLUTION
'''


def changes(*lines):
    """The changes of a solution of these lines."""
    source = CELL.format("\n".join(f"    {line}" for line in lines))
    return [mutant.change for mutant in mutation.mutants_of(source)]


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("return x < 1", "return x <= 1"),
        ("return x / n", "return x"),
        ("return x / n", "return x / (n - 1)"),
        ("return not x and n", "return x and n"),
        ("return x and n", "return x or n"),
        ("return x if n else 1", "return 1"),
        ("return x + 3", "return x + 4"),
        ("return x[:n]", "return x[:n + 1]"),
        ("return x[::-1]", "return x[:]"),
        ("return x[-1]", "return x[-2]"),
        ("return x", "return None"),
        ("comm.Barrier()", "nothing"),
        ("request.Wait()", "nothing"),
        ("return comm.Get_rank()", "return Communicator().Get_rank()"),
        ("comm.Allreduce(x, total)", "comm.Allreduce(total, x)"),
        ("comm.Allreduce(x, total, op=MPI.MAX)", "comm.Allreduce(x, total, op=MPI.SUM)"),
        ("comm.Sendrecv(x, dest=0, source=1)", "comm.Sendrecv(x, source=0, dest=1)"),
        ("return x.sum(axis=0)", "return x.sum()"),
        ("return x.sum(axis=0)", "return x.sum(axis=1)"),
        ("return np.empty(n, x.dtype)", "return np.empty(n)"),
        ("return np.ascontiguousarray(x.T)", "return x.T"),
        ("return np.ascontiguousarray(x.T)", "return np.ascontiguousarray(x)"),
        ("return reversed(x.copy())", "return x.copy()"),
        ("return reversed(x.copy())", "return reversed(x)"),
        ("return x, n", "return (n, x)"),
        ("x += n", "x = n"),
    ],
)
def test_a_usual_mistake_is_among_the_mutants(line, after):
    before = ast.unparse(ast.parse(line)) if line.startswith("return") else line
    every = changes(line)
    assert f"{before} → {after}" in every
    assert len(set(every)) == len(every)


def test_a_condition_is_always_met_or_never():
    assert changes("if n:", "    x = x + x") == [
        "if n: / x = x + x → x = x + x",
        "if n: / x = x + x → nothing",
        "if n: → if n - 1:",
        "x = x + x → pass",
        "x = x + x → x = x - x",
        "x = x + x → x = x",
    ]


def test_only_the_solution_changes_and_never_into_itself():
    source = CELL.format("    return n * n\n")
    for mutant in mutation.mutants_of(source):
        assert mutant.source.startswith("%%px\n") and mutant.source != mutation.rewritten(source)
        assert "not 3" in mutant.source
        assert "if n < 0:\n        raise ValueError(n)" in mutant.source
        assert mutant.function == "mean"


def test_the_only_binding_of_a_name_is_not_removed():
    assert "total = x → nothing" not in changes("total = x", "return total")
    assert "total = n → nothing" in changes("total = x", "total = n", "return total")


def test_a_record_keeps_the_reasons(monkeypatch, tmp_path):
    mutants = mutation.mutants("03_naive_forward")
    (tmp_path / "03_naive_forward").mkdir()
    monkeypatch.setattr(records, "SOLUTIONS", tmp_path)
    path = records.write("03_naive_forward", mutants, mutants[:2])
    record = records.read("03_naive_forward")
    assert record.is_of("03_naive_forward", mutants)
    assert record.reason(mutants[0]) == ""
    path.write_text(path.read_text().replace('= ""', '= "as good"'))
    records.write("03_naive_forward", mutants, mutants[1:3])
    record = records.read("03_naive_forward")
    assert [record.reason(mutant) for mutant in mutants[:3]] == ["", "as good", ""]
    assert not record.is_of("03_naive_forward", mutants[1:])
