"""A student's functions live on in the hand-in files, and nothing that was there is lost."""

import ast
import importlib.util
import random
from types import SimpleNamespace

import pytest

from course_lib import saving, students
from course_lib.check import Check, CheckFailed
from course_lib.saving import SaveError, save, write
from course_lib.students import load, missing
from grading.authoring import build, reference

IMPORTS = "%%px\nimport numpy as np\n\nfrom mpi4py import MPI\ncomm = None"
GRAD = "# %%px\ndef collect_weight_grad(grad_w, grad_b, dp_comm):\n    return half(grad_w), np.add(grad_b, OFFSET)"
HELPER = "%%px\nOFFSET = 3\n\n\ndef half(x):\n    return x / 2"
INFO = "%%px\ndef get_info(comm, rank, *rest):\n    mp_idx = rank % 2\n    return [mp_idx for _ in range(3)]"


@pytest.fixture(autouse=True)
def all_passed(monkeypatch):
    monkeypatch.setattr(students, "passed_exercises", set(students.EXERCISES))


def test_what_has_not_passed_its_check_is_saved_and_remembered(tmp_path, capsys):
    students.passed_exercises.clear()
    cells = SimpleNamespace(cells=[IMPORTS, HELPER, GRAD, INFO])
    save(cells, "collect_weight_grad", "get_info", folder=tmp_path)
    said = "Not verified yet: collect_weight_grad, get_info; their checks have not passed since. Run the check, and then this cell again.\n"
    assert capsys.readouterr().out.endswith(said)
    assert students.not_passed(load(tmp_path)) == {"07_weight_grad": ["collect_weight_grad"], "02_process_groups": ["get_info"]}
    Check("get_info for all grids of 8 ranks").passed()
    save(cells, "collect_weight_grad", "get_info", folder=tmp_path)
    assert students.not_passed(load(tmp_path)) == {"07_weight_grad": ["collect_weight_grad"]}
    Check("collect_weight_grad, mp_size=2").passed()
    save(cells, "collect_weight_grad", "get_info", folder=tmp_path)
    assert students.not_passed(load(tmp_path)) == {} and students.NOT_PASSED_NAME not in (tmp_path / "func_impl.py").read_text()
    students.forget_passed(GRAD)  # another one, or the same again: it was run since
    with pytest.raises(CheckFailed):
        Check("get_info for all grids of 8 ranks").fail("no")
    capsys.readouterr()
    save(cells, "collect_weight_grad", "get_info", folder=tmp_path)
    assert capsys.readouterr().out.endswith(said)
    write(tmp_path / "func_impl.py", ["get_info"], [INFO], [])
    assert students.not_passed(load(tmp_path)) == {"07_weight_grad": ["collect_weight_grad"]}


@pytest.mark.parametrize("listed", ["5", "None", "[get_info, 3]", "['get_info', 3]", "['nobody']"])
def test_a_list_that_somebody_has_changed_is_in_nobodys_way(tmp_path, listed):
    path = tmp_path / "func_impl.py"
    path.write_text(f"get_info = print\n{students.NOT_PASSED_NAME} = {listed}\n")
    assert set(students.not_passed(load(tmp_path))) <= {"02_process_groups"}
    write(path, ["get_info"], [INFO])
    assert students.not_passed(load(tmp_path)) == {}


def test_a_function_is_saved_with_what_it_uses(tmp_path, capsys):
    save(SimpleNamespace(cells=[IMPORTS, HELPER, GRAD]), "collect_weight_grad", folder=tmp_path)
    assert capsys.readouterr().out == "Saved to func_impl.py: collect_weight_grad.\n"
    text = (tmp_path / "func_impl.py").read_text()
    assert "comm" not in text.replace("dp_comm", "") and "MPI" not in text, "what it does not use stays out"
    assert [float(v) for v in load(tmp_path).collect_weight_grad(4.0, 1.0, None)] == [2.0, 4.0]


def test_the_last_run_counts_and_the_file_before_is_kept(tmp_path):
    write(tmp_path / "func_impl.py", ["get_info"], [INFO])
    before = (tmp_path / "func_impl.py").read_text()
    write(tmp_path / "func_impl.py", ["collect_weight_grad"], [IMPORTS, HELPER, GRAD])
    newer = GRAD.replace("half(grad_w)", "2 * half(grad_w)")
    write(tmp_path / "func_impl.py", ["collect_weight_grad"], [IMPORTS, HELPER, GRAD, newer])
    found = load(tmp_path)
    assert found.get_info(None, 5) == [1, 1, 1] and found.collect_weight_grad(4.0, 1.0, None)[0] == 4.0
    text = (tmp_path / "func_impl.py").read_text()
    assert text.count("def collect_weight_grad") == text.count("def half") == text.count("import numpy as np") == 1
    assert "    return half(grad_w)" in (tmp_path / "func_impl.py.bak").read_text() and "def get_info" in before
    assert sorted(p.name for p in tmp_path.glob("func*")) == ["func_impl.py", "func_impl.py.bak"]


def test_what_a_student_wrote_by_hand_stays(tmp_path):
    path = tmp_path / "func_impl.py"
    path.write_text('"""Mine."""\nimport sys\n\n# a note\ndef get_info(*a):\n    return 1\n\nprint  # a statement\nx = 5\n')
    write(path, ["get_info"], [INFO])
    write(path, ["collect_weight_grad"], [IMPORTS, HELPER, GRAD])
    text = path.read_text()
    assert text.startswith('"""Mine."""\nimport sys\nimport numpy as np\n')
    assert "# a note\ndef get_info(comm, rank, *rest):" in text and "print  # a statement\nx = 5\n" in text
    spec = importlib.util.spec_from_file_location("mine", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_an_unfinished_function_is_not_saved(tmp_path, capsys):
    stub = 'def get_info(*a):\n    """Doc."""\n    # YOUR CODE HERE\n    raise NotImplementedError()'
    save(SimpleNamespace(cells=[stub]), "get_info", folder=tmp_path)
    save(SimpleNamespace(cells=[]), "split_data", folder=tmp_path)
    assert capsys.readouterr().out.count("not finished") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([GRAD], "collect_weight_grad uses half, which no %%px cell defines|uses np|uses OFFSET"),
        (["def other():\n    pass"], "no %%px cell that was run defines collect_weight_grad"),
    ],
)
def test_what_cannot_be_saved_is_said(tmp_path, cells, said):
    with pytest.raises(SaveError, match=said):
        write(tmp_path / "func_impl.py", ["collect_weight_grad"], cells)
    assert not list(tmp_path.iterdir())


def test_two_helpers_of_one_name_are_not_mixed_up(tmp_path):
    path = tmp_path / "func_impl.py"
    write(path, ["collect_weight_grad"], [IMPORTS, HELPER, GRAD])
    other = "def half(x):\n    return x // 2\n\n\ndef get_info(*a):\n    return half(a[1])"
    before = path.read_text()
    with pytest.raises(SaveError, match="has a different half, which collect_weight_grad uses"):
        write(path, ["get_info"], [other])
    assert path.read_text() == before


def test_a_broken_file_is_not_touched(tmp_path):
    path = tmp_path / "func_impl.py"
    path.write_text("def get_info(:\n")
    with pytest.raises(SaveError, match=r"is not valid Python \(line 1\)"):
        write(path, ["get_info"], [INFO])
    assert path.read_text() == "def get_info(:\n"
    with pytest.raises(ImportError, match="cannot be imported: SyntaxError"):
        load(tmp_path)


def test_cells_with_magics_and_decorators_are_read(tmp_path):
    cells = [
        "%%px --targets 0\n%time 1 + 1\nimport functools\n",
        "%%px\n@functools.cache\ndef get_info(*a):\n    '''\n%%px\n'''\n    return 7",
    ]
    write(tmp_path / "func_impl.py", ["get_info"], cells)
    assert load(tmp_path).get_info() == 7 and "%%px" in load(tmp_path).get_info.__wrapped__.__doc__


def saved_cells():
    """The %%px cells of each part that saves something, by part."""
    cells = {}
    for part in dict.fromkeys(part for part, _ in students.NOTEBOOKS.values()):
        sources = [cell.source for cell in build.build(part).cells if cell.cell_type == "code"]
        cells[part] = [source for source in sources if source.startswith("%%px")]
    return cells


@pytest.mark.parametrize("order", ["as_they_come", "last_first", "drawn"])
def test_all_parts_saved_in_any_order_keep_the_names_they_were_written_with(tmp_path, order):
    cells = saved_cells()
    parts = list(cells)
    if order == "last_first":
        parts.reverse()
    if order == "drawn":
        random.Random(4).shuffle(parts)
    for part in [*parts, *parts]:  # and once more, as someone who runs a notebook again
        for file in dict.fromkeys(file for its_part, file in students.NOTEBOOKS.values() if its_part == part):
            names = [name for name, place in students.NOTEBOOKS.items() if place == (part, file)]
            write(tmp_path / file, names, cells[part])
    for name, (part, file) in students.NOTEBOOKS.items():
        written = saving._with_dependencies([name], saving._definitions_of_cells(cells[part]))
        in_file = saving._with_dependencies([name], saving._definitions_of_cells([(tmp_path / file).read_text()]))
        assert {n: ast.dump(node) for n, node in in_file.items()} == {n: ast.dump(node) for n, node in written.items()}, name
    assert missing(load(tmp_path), tuple(file for _, file in students.NOTEBOOKS.values())) == {}


def test_a_name_that_another_file_imports_is_no_exercise(tmp_path):
    (tmp_path / "transformer_impl.py").write_text("from json import loads as decode\n\n\ndef gather_as():\n    return decode\n")
    functions = load(tmp_path)
    assert functions.gather_as() is not None and not hasattr(functions, "decode")


def test_the_reference_is_all_that_is_needed(tmp_path):
    files = reference.write(tmp_path / "deep" / "folder")
    assert [f.name for f in files] == [
        "data_parallel_preprocess.py",
        "func_impl.py",
        "serving_impl.py",
        "transformer_impl.py",
        "zero_dp_stage3.py",
    ]
    assert "import decode" in (tmp_path / "deep" / "folder" / "transformer_impl.py").read_text(), "that of number formats"
    assert missing(load(tmp_path / "deep" / "folder")) == {} and len(missing(SimpleNamespace())) == 7
    imports = [line for f in files for line in f.read_text().splitlines() if line.startswith(("import", "from"))]
    others = {line for line in imports if not line.startswith("from course_lib.")}
    known = {"import json", "import os", "from safetensors import safe_open", "from safetensors.numpy import save_file"}
    assert others <= known | {"import numpy as np", "from mpi4py import MPI"}
    assert "SOLUTION" not in "".join(f.read_text() for f in files)
