"""A GPT on all grids: they train the same model, and go on from each other's checkpoints; and the command for a shell."""

import json
import re

import numpy as np
import pytest

from course_lib import cluster
from course_lib.gpt.text import MOST, TextError, find, texts
from grading import reference
from tests.machine import mpiexec

GRIDS = (
    dict(dp=4),
    dict(dp=2, tp=2, sequence=True),
    dict(pp=2, tp=2),
    dict(dp=2, pp=2, fsdp=True),
    dict(pp=4, schedule="gpipe"),
    dict(dp=2, tp=2, sequence=True, fsdp=True),
)
SMALL = dict(width=32, heads=4, depth=4, length=32, batch=8)


def start(sizes, balance=0.01):
    """A trainer on each rank of the grid, on the same text with any Python; the others take no part."""
    import numpy as np

    from course_lib import students
    from course_lib.gpt import assemble
    from course_lib.gpt.settings import Settings
    from course_lib.gpt.trainer import Trainer

    assemble.BALANCE, settings = balance, Settings(**sizes)
    inside = everyone.Get_rank() < settings.mesh.size
    group = everyone.Split(color=int(not inside), key=everyone.Get_rank())
    functions = students.load(place)
    get_ipython().user_ns["trainer"] = (
        Trainer(settings, functions, group, np.random.default_rng(0).geometric(0.05, 5000).astype(np.uint8)) if inside else None
    )


def go(steps):
    return [trainer.go() for _ in range(steps)] if trainer else []


def put(folder):
    from course_lib.gpt import whole

    trainer.functions.save(folder, trainer.step, whole.parts(trainer), trainer.groups.ordered)


def take(folder):
    from course_lib.gpt import sample, whole

    whole.take(trainer, *trainer.functions.load(folder, trainer.groups.ordered))
    return sample.write(trainer, "def ", 12)


def moved(steps):
    from course_lib import traffic
    from course_lib.gpt import account

    traffic.reset()
    for _ in range(steps):
        trainer.go()
    return account.moved(trainer, steps), account.held(trainer)


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    reference.write(folder)
    return folder


@pytest.fixture(scope="module")
def ranks(functions):
    found = cluster.start(4)
    found.run(f"from course_lib.collectives import Communicator\neveryone = Communicator()\nplace = {str(functions)!r}")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def alone(ranks):
    """The losses of eight steps on one rank, with plain loops and none of the student's functions."""
    ranks.call(start, dict(sizes=SMALL))
    losses = ranks.call(go, dict(steps=8))[0]
    assert losses[-1] < losses[0] - 0.5
    return losses


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_grid_trains_the_same_model_and_another_goes_on(ranks, alone, grid, tmp_path):
    ranks.call(start, dict(sizes=SMALL | grid))
    np.testing.assert_allclose(ranks.call(go, dict(steps=4)), [alone[:4]] * 4, rtol=0, atol=2e-5)
    ranks.call(put, dict(folder=str(tmp_path)))
    other = GRIDS[(GRIDS.index(grid) + 1) % len(GRIDS)]
    ranks.call(start, dict(sizes=SMALL | other))
    wrote = ranks.call(take, dict(folder=str(tmp_path)))
    np.testing.assert_allclose(ranks.call(go, dict(steps=4)), [alone[4:]] * 4, rtol=0, atol=2e-5)
    assert wrote[0].startswith("def ") and wrote[1:] == [""] * 3


def test_experts_learn_the_same_where_none_is_full(ranks):
    sizes = SMALL | dict(experts=4, capacity=4.0, micro_batches=1)
    # A token between two experts may go to the other one by a rounding: so these are not equal to the last digits.
    # Where tensor parallel ranks have other tokens, others meet in the balancing loss: those grids are compared without it.
    for balance, grids in ((0.01, (dict(dp=2), dict(dp=4), dict(dp=2, tp=2), dict(dp=2, pp=2))), (0.0, (dict(dp=2, tp=2, sequence=True),))):
        ranks.call(start, dict(sizes=sizes, balance=balance))
        want = ranks.call(go, dict(steps=6))[0]
        for grid in grids:
            ranks.call(start, dict(sizes=sizes | grid, balance=balance))
            np.testing.assert_allclose(ranks.call(go, dict(steps=6))[0], want, rtol=0, atol=2e-3, err_msg=str(grid))


def test_bytes_by_axis_and_memory_by_kind_are_what_they_must_be(ranks):
    ranks.call(start, dict(sizes=SMALL | dict(dp=2, pp=2)))
    activations = 8 // 2 * 32 * 32 * 4  # of a rank's texts
    for sent, held in ranks.call(moved, dict(steps=2)):
        assert sent["pp"] == activations
        assert sent["dp"] == held["parameters"] == held["gradients"] == held["optimizer state"] / 2  # an all-reduce of two ranks: 2 (n-1)/n
    ranks.call(start, dict(sizes=SMALL | dict(dp=4, fsdp=True)))
    (_, shared), *_ = ranks.call(moved, dict(steps=2))
    ranks.call(start, dict(sizes=SMALL | dict(dp=4)))
    (_, plain), *_ = ranks.call(moved, dict(steps=2))
    for kind in ("parameters", "gradients", "optimizer state"):
        assert plain[kind] / 4 <= shared[kind] <= 1.01 * plain[kind] / 4


def gpt(n, *words, functions, out, **options):
    small = [word for name, size in SMALL.items() for word in (f"--{name}", str(size))]
    return mpiexec(n, "-m", "course_lib.gpt", *small, *words, "--functions", str(functions), "--out", str(out), **options)


def test_a_run_goes_on_after_its_end_on_another_grid(functions, tmp_path):
    whole, parts = (gpt(4, "--tp", "2", "--steps", "12", functions=functions, out=tmp_path / "a"), None)
    assert whole.returncode == 0, whole.stderr
    parts = gpt(4, "--tp", "2", "--sequence", "--steps", "6", "--every", "2", functions=functions, out=tmp_path / "b")
    assert parts.returncode == 0, parts.stderr
    again = gpt(4, "--tp", "2", "--steps", "9", functions=functions, out=tmp_path / "b")
    assert again.returncode == 2 and f"{tmp_path / 'b'} has a run already: go on with it by --resume" in again.stderr
    more = gpt(2, "--pp", "2", "--steps", "12", "--resume", functions=functions, out=tmp_path / "b")
    assert more.returncode == 0, more.stderr
    losses = [re.search(r"loss +([\d.]+ to [\d.]+)", run.stdout)[1] for run in (whole, more)]
    assert losses[0] == losses[1] and "after 6 steps" in more.stdout and "after 12 steps" in more.stdout
    page = (tmp_path / "b" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4 and "http" not in page and "pp 2" in page
    index = json.loads((tmp_path / "b" / "checkpoint" / "index.json").read_text())
    assert index["step"] == 12 and index["ranks"] == 2


BAD = {
    "a grid that does not fit": (["--tp", "2", "--pp", "2", "--dp", "2"], "--dp 2 --pp 2 --tp 2 need 8 ranks, and mpiexec started 2: use"),
    "heads": (["--tp", "2", "--heads", "1"], "tp=2 does not divide 1, the heads"),
    "layers": (["--pp", "2", "--depth", "3"], "pp=2 does not divide 3, the depth"),
    "width": (["--heads", "5"], "heads=5 does not divide 32, the width"),
    "texts": (["--batch", "3"], "dp=2 does not divide 3, the batch"),
    "micro-batches": (["--micro-batches", "3"], "micro_batches=3 does not divide 4"),
    "experts and fsdp": (["--experts", "2", "--fsdp"], "experts and fsdp do not go together"),
    "sequence alone": (["--sequence"], "tp is 1"),
    "no such text": (["--text", "nowhere"], "there is no nowhere to read text from"),
    "nothing to go on from": (["--resume"], "there is no checkpoint in"),
    "no width": (["--width", "0"], "width must be at least 1; got 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_command_that_cannot_be_carried_out_gets_one_sentence(case, functions, tmp_path):
    words, said = BAD[case]
    done = gpt(2, *words, functions=functions, out=tmp_path / "run")
    assert done.returncode != 0 and said in done.stderr and done.stderr.count("course_lib.gpt:") == 1
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()


def test_a_missing_function_is_named(tmp_path):
    done = gpt(2, "--tp", "2", functions=tmp_path, out=tmp_path / "run")
    assert done.returncode != 0 and "copy_to_group is missing. Finish the notebook 21_tensor_parallel" in done.stderr


def test_a_checkpoint_that_is_damaged_or_of_another_model_is_left_as_it_is(functions, tmp_path):
    out = tmp_path / "run"
    assert gpt(2, "--steps", "2", functions=functions, out=out).returncode == 0
    before = {path: path.read_bytes() for path in (out / "checkpoint").iterdir()}
    other = gpt(2, "--steps", "4", "--resume", "--width", "64", functions=functions, out=out)
    assert other.returncode != 0 and "has width 32, and this one 64" in other.stderr
    notes = out / "run.json"
    notes.write_text(notes.read_text().replace('"width": 32', '"width": 64'))
    other = gpt(2, "--steps", "4", "--resume", "--width", "64", functions=functions, out=out)
    assert other.returncode != 0 and "the checkpoint is of another model: of parameters/" in other.stderr
    notes.write_text(notes.read_text().replace('"width": 64', '"width": 32'))
    assert before == {path: path.read_bytes() for path in (out / "checkpoint").iterdir()}
    path = out / "checkpoint" / "2-1.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    broken = gpt(2, "--steps", "4", "--resume", functions=functions, out=out)
    assert broken.returncode != 0 and "2-1.safetensors is damaged" in broken.stderr and broken.stderr.count("course_lib.gpt:") == 1


def test_a_full_disk_leaves_the_checkpoint_before(functions, tmp_path):
    out = tmp_path / "run"
    assert gpt(2, "--steps", "2", functions=functions, out=out).returncode == 0
    for path in functions.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))\n"
    (tmp_path / "transformer_impl.py").write_text(limit + (tmp_path / "transformer_impl.py").read_text())
    done = gpt(2, "--steps", "4", "--resume", functions=tmp_path, out=out)
    assert done.returncode != 0 and "could not write the checkpoint of step 4" in done.stderr and "Traceback" not in done.stderr
    assert json.loads((out / "checkpoint" / "index.json").read_text())["step"] == 2
    assert gpt(2, "--steps", "4", "--resume", functions=functions, out=out).returncode == 0


def test_text_comes_from_a_folder_and_is_the_same_for_all(tmp_path):
    with pytest.raises(TextError, match="there is no text in"):
        find(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("Käse und Brot")
    (tmp_path / "b.bin").write_bytes(bytes(100))
    text, name = find(tmp_path)
    assert text.tobytes().decode() == "Käse und Brot" and name.endswith(", 1 file")
    with pytest.raises(TextError, match="has 14 bytes, and one of 14 positions needs 15"):
        texts(text, 0, 2, 14, 0)
    tokens, labels = texts(text, 3, 4, 8, 0)
    assert tokens.shape == labels.shape == (4, 8) and np.array_equal(tokens[:, 1:], labels[:, :-1])
    assert len(find()[0]) <= MOST
