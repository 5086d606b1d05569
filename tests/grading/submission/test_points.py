"""Through `nbgrader autograde`: right answers keep their points, wrong ones lose them, cheats get none."""

import os
import re

import nbformat
import pytest
from machine import patient
from nbformat.v4 import new_code_cell

from course_lib.cluster import time_limits
from grading import variants
from grading.authoring import answers, build
from grading.feedback import feedback
from grading.paths import SOLUTIONS, parts
from grading.submission.assembly import assemble

SPLIT, SHORT = "01_data_split", "03_naive_forward"
# Some of the wrong and right answers also go all the way; `test_all_variants_get_what_they_deserve` has them all.
MEASURED = [part for part in parts() if part[:2] in ("08", "23", "25", "26", "32", "34", "36")]  # their memory is
SAMPLE = {
    "03_naive_forward": ["padded_all_reduce", "deadlock", "row_by_row"],
    "19_1f1b": ["gpipe", "late_gradients", "queue"],
    "21_tensor_parallel": ["own_largest", "local_labels", "of_logs"],
    "26_fsdp": ["replaces", "not_freed_forward", "all_reduced_norms"],
    "27_checkpoint": ["no_barrier", "rounded_down", "by_pathlib"],
    "31_sixteen_bits": ["sums_in_16_bits", "diagonal_unheard", "by_a_ring"],
    "32_recomputation": ["other_masks", "greedy", "fronts"],
    "34_serving": ["leaks", "in_rank_order", "by_order_of_arrival"],
    "35_zero_bubble": ["undivided", "right_after", "newest_first"],
    "36_muon": ["zeros", "by_elements", "each_part", "messages"],
    "37_survival": ["no_broadcast", "drops_later", "asks_all"],
}


def test_a_kernel_that_does_not_come_up_leaves_nothing_behind(monkeypatch):
    def dead(self):
        raise RuntimeError("Kernel died before replying to kernel_info")

    monkeypatch.setattr(variants.NotebookClient, "setup_kernel", dead)
    before = dict(os.environ)
    part = variants.RunningPart(SPLIT)
    with pytest.raises(RuntimeError, match="Kernel died"), part:
        pass
    assert dict(os.environ) == before and not os.path.exists(part._folder.name)


@pytest.mark.slow
@pytest.mark.parametrize("part", parts())
def test_a_solved_notebook_runs_without_an_error_and_earns_all(course, part, monkeypatch):
    monkeypatch.setenv(time_limits.UNATTENDED, "180")  # this machine may be busy with other tests
    course.hand_in(part, "solved", course.solved(part))
    points = course.grade(part)
    if points_of(part):  # test_solved_notebooks.py runs those that are not graded
        cells = course.graded(part, "solved").values()
        assert [o for c in cells if c.cell_type == "code" for o in c.outputs if o.output_type == "error"] == []
    assert points == {"solved": points_of(part)} and course.failed == []


@pytest.mark.parametrize("part", [part if part == SHORT else pytest.param(part, marks=pytest.mark.slow) for part in SAMPLE])
def test_untouched_notebooks_earn_nothing_and_variants_what_they_deserve(course, part, monkeypatch):
    monkeypatch.setenv(time_limits.UNATTENDED, "180")  # this machine may be busy with other tests
    course.hand_in(part, "untouched", course.untouched(part))
    expected = {"untouched": 0}
    for answer in answers.read(part):
        if answer.name in SAMPLE[part]:
            cell = f"exercise-{answer.function.lower().replace('_', '-')}"
            assert cell in {c.id for c in build.build(part).cells}, answer.name
            source = f"%%px\nimport numpy as np\n{answer.source}"
            if answer.source.startswith("class"):  # it changes a part of the solution
                source = course.cell(build.build(part), cell).source + "\n\n\n" + answer.source
            course.hand_in(part, answer.name, course.solved(part, source, cell))
            expected[answer.name] = points_of(part) - answer.loses
    assert len(expected) == 1 + len(SAMPLE[part])
    assert course.grade(part) == expected and course.failed == []


def points_of(part):
    return sum(c.metadata.nbgrader.points for c in build.build(part).cells if build.kind_of(c) == "test")


TWO = """# ---
# jupyter:
#   course:
#     ranks: 2
# ---

# %% Start tags=["given"]
from course_lib import cluster
ranks = cluster.start(2)

# %% Set up tags=["given"]
# %%px
from course_lib.collectives import Communicator
comm = Communicator()

# %% First tags=["exercise"]
# %%px
def first():
    ### BEGIN SOLUTION
    return 1
    ### END SOLUTION

# %% Second tags=["exercise"]
# %%px
def second():
    ### BEGIN SOLUTION
    comm.Barrier()
    return comm.Get_size()
    ### END SOLUTION

# %% Test first tags=["test"] points=3
### BEGIN HIDDEN TESTS
assert ranks.call("first") == [1, 1]
### END HIDDEN TESTS

# %% Test second tags=["test"] points=4
### BEGIN HIDDEN TESTS
assert ranks.call("second") == [2, 2]
### END HIDDEN TESTS

# %% Test with a warning and a score tags=["test"] points=2
### BEGIN HIDDEN TESTS
import warnings
warnings.warn("a warning costs no points")
float(2.0)
### END HIDDEN TESTS
"""

BAD_FIRSTS = {
    "hangs": "%%px\ndef first():\n    if comm.Get_rank(): comm.Barrier()\n    return 1",
    "endless": "%%px\ndef first():\n    while True: pass",
    "endless-cell": "%%px\nwhile True: pass",
    "ignores-interrupts": "%%px\nimport time\ndef first():\n    while 1:\n        try: time.sleep(1)\n        except BaseException: pass",
    "dies": "%%px\nimport os\ndef first(): os._exit(1)",
    "dies-in-the-cell": "%%px\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "floods": "%%px\ndef first():\n    for i in range(10**6): print('x' * 100)",
}


@pytest.mark.slow
def test_a_bad_exercise_costs_its_own_points_only(course, monkeypatch, tmp_path, capfd):
    from grading.authoring import build as builder

    part = "98_two"
    monkeypatch.setattr(builder, "SOLUTIONS", tmp_path / "solutions")
    (tmp_path / "solutions" / part).mkdir(parents=True)
    (tmp_path / "solutions" / part / f"{part}.py").write_text(TWO)
    monkeypatch.setenv(time_limits.UNATTENDED, str(patient(4)))
    for name, source in BAD_FIRSTS.items():
        course.hand_in(part, name, course.solved(part, source, exercise="first"))
    course.hand_in(part, "z-honest", course.solved(part))
    (course.home / "submitted" / "no-notebook" / part).mkdir(parents=True)
    (course.home / "submitted" / "not-json" / part).mkdir(parents=True)
    (course.home / "submitted" / "not-json" / part / f"{part}.ipynb").write_text("<html>")
    points = course.grade(part)
    assert sorted(course.failed) == ["no-notebook", "not-json"]
    printed = capfd.readouterr()
    printed = printed.out + printed.err
    assert "no-notebook: NOT graded: expected 98_two.ipynb in" in printed
    assert "not-json: NOT graded" in printed and "it is no JSON (Expecting value: line 1" in printed
    assert points.pop("z-honest") == 9
    assert {n: points[n] for n in BAD_FIRSTS} == {n: 6 for n in BAD_FIRSTS}
    said = course.graded(part, "hangs")["test-first"].outputs[0].evalue
    assert "rank 1 waits in Barrier #1" in said and "rank 0 has finished the cell without it" in said
    assert "was still running after" in course.graded(part, "endless")["test-first"].outputs[0].evalue


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_stopped(course, monkeypatch):
    from grading.running.grading_run import GradingRun

    for student in ("ada", "ben", "cleo"):
        course.hand_in(SPLIT, student, course.solved(SPLIT))
    real, seen = GradingRun._task, []

    def interrupted(self, student):
        seen.append(student)
        if seen == ["ada", "ben", "cleo"]:
            raise KeyboardInterrupt
        return real(self, student)

    monkeypatch.setattr(GradingRun, "_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        course.grade(SPLIT, jobs="1")
    assert course.points(SPLIT)["ada"] == 10 and course.waiting(SPLIT) == ["ben", "cleo"]
    assert course.grade(SPLIT) == {"ada": 10, "ben": 10, "cleo": 10}
    assert seen == ["ada", "ben", "cleo", "ben", "cleo"], "a graded hand-in was graded again"
    course.hand_in(SPLIT, "ada", course.wrong())
    assert course.waiting(SPLIT) == ["ada"], "a new hand-in replaces the old one"


@pytest.mark.slow
def test_feedback_says_what_failed_and_shows_no_test(course):
    course.hand_in(SPLIT, "ada", course.wrong())
    course.hand_in(SPLIT, "ben", course.wrong("1 / 0; "))
    course.hand_in(SPLIT, "cleo", course.wrong("x = (; "))
    course.grade(SPLIT)
    feedback(SPLIT, course.home, course.notebooks)
    pages = {s: (course.home / "feedback" / s / SPLIT / f"{SPLIT}.html").read_text() for s in ("ada", "ben", "cleo")}
    secret = [line.strip() for c in build.build(SPLIT).cells if build.kind_of(c) == "test" for line in c.source.splitlines()]
    visible = "\n".join(c.source for c in build.build(SPLIT).cells if build.kind_of(c) != "test")
    for page in pages.values():
        assert not [line for line in secret if len(line) > 15 and line not in visible and line != build.HIDDEN_NOTE and line in page]
        assert "check.random" not in page
    assert (
        "split_x_train on rank 0 has shape" in pages["ada"] and "A usual cause" in pages["ada"] and "mp_size 1, dp_size 8" in pages["ada"]
    )
    assert "ZeroDivisionError" in pages["ben"] and re.search('cell (&quot;|&#34;|")split_data(&quot;|&#34;|"), line 3', pages["ben"])
    assert "Its cell did not run: ranks 0–7: SyntaxError: " in pages["cleo"], "that the function is not there is not what is wrong"


@pytest.mark.slow
def test_assembling_keeps_helpers_of_the_student(course):
    notebook = course.solved(SPLIT, "%%px\ndef split_data(*given, **named):\n    return helper(*given, **named)")
    solution = next(c for c in build.build(SPLIT).cells if build.kind_of(c) == "exercise").source
    place = notebook.cells.index(course.cell(notebook, "exercise-split-data"))
    helper = solution.replace("def split_data", "def helper")
    notebook.cells.insert(place, nbformat.v4.new_code_cell(helper))
    course.hand_in(SPLIT, "helped", notebook)
    plain = course.solved(SPLIT, solution.removeprefix("%%px\n"))  # forgot %%px: it runs on the ranks all the same
    course.hand_in(SPLIT, "plain", plain)
    assert course.grade(SPLIT) == {"helped": 10, "plain": 10}
    ids = [c.id for c in assemble(build.build(SPLIT), notebook).cells]
    assert len(ids) == len(set(ids))


GRADED = [part for part in parts() if (SOLUTIONS / part / "variants.py").exists()]


@pytest.mark.brief
@pytest.mark.parametrize("part", GRADED)
def test_the_first_answers_get_what_they_deserve(part):
    lines = []
    passed, failed = variants.check_first_variants(part, lines.append)
    assert failed == 0, "\n".join(lines)
    exercises = [cell for cell in build.build(part).cells if build.kind_of(cell) == "exercise"]
    wrong = {answer.function for answer in answers.read(part) if answer.loses}
    assert passed >= 1 + len(exercises) and all(variants.defined_names(cell) & wrong for cell in exercises), (
        "an exercise without a wrong answer"
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", GRADED)
def test_all_variants_get_what_they_deserve(part):
    lines = []
    passed, failed = variants.check(part, lines.append, once=True)
    assert failed == 0, "\n".join(lines)
    assert passed == len(answers.read(part)) + 1


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in GRADED if answers.read(part, "cheats.py")])
def test_no_cheat_of_a_part_gains_a_point(part):
    lines = []
    passed, failed = variants.cheats(part, lines.append, once=True)
    assert failed == 0, "\n".join(lines)
    assert passed == len(answers.read(part, "cheats.py"))


@pytest.mark.slow
def test_a_hand_in_from_before_a_move_keeps_its_points(course):
    """Its cells name modules that are elsewhere now; they are taken from the source, and the answer's own imports still work."""
    old = course.solved(SPLIT)
    for cell in old.cells:
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("locked"):
            cell.source = f"from course_lib import functions, px, zero_checks\n{cell.source}"
    answer = course.cell(old, "exercise-split-data")
    answer.source = answer.source.replace("%%px\n", "%%px\nfrom course_lib.collectives import Communicator\nimport numpy as np\n", 1)
    course.hand_in(SPLIT, "early", old)
    assert course.grade(SPLIT) == {"early": 10} and course.failed == []


def test_what_runs_before_another_answer_runs_without_an_error():
    with variants.RunningPart(SHORT) as part:
        assert [o for o in part._run(variants.RESET_LIMITS).outputs if o.output_type == "error"] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", MEASURED)
def test_large_arrays_of_a_students_other_cells_cost_no_points_for_memory(course, part, monkeypatch):
    monkeypatch.setenv(time_limits.UNATTENDED, "180")  # this machine may be busy with other tests
    notebook = course.solved(part)
    exercise = next(i for i, cell in enumerate(notebook.cells) if cell.id.startswith("exercise"))
    played = "%%px\nimport numpy as np\nx = w = data = {'x': [np.ones(4_000_000)]}\nnp.ones(2_000_000)"
    notebook.cells.insert(exercise + 1, new_code_cell(played))
    course.hand_in(part, "played", notebook)
    assert course.grade(part) == {"played": points_of(part)}
