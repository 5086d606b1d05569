"""A GPT on all grids: they train the same model, and go on from each other's checkpoints; and the command for a shell."""

import json
import os
import re
import sysconfig

import numpy as np
import pytest
from machine import mpiexec

from course_lib import cluster
from course_lib.gpt.text import MAX_TEXT_BYTES, TextError, load_text, sample_batch
from grading.authoring import reference

GRIDS = (
    dict(dp=4),
    dict(dp=2, tp=2, sequence=True),
    dict(pp=2, tp=2),
    dict(dp=2, pp=2, fsdp=True),
    dict(pp=4, schedule="gpipe"),
    dict(dp=2, tp=2, sequence=True, fsdp=True),
    dict(dp=4, micro_batches=2),
    dict(dp=4, fsdp=True, micro_batches=2),
    dict(cp=4),
    dict(cp=2, dp=2),
    dict(cp=2, tp=2, sequence=True),
    dict(cp=2, pp=2, micro_batches=2),
    dict(cp=2, dp=2, fsdp=True),
)
SMALL = dict(width=32, heads=4, depth=4, length=32, batch=8)


def start(sizes, balance=0.01):
    """A trainer on each rank of the grid, on the same text with any Python; the others take no part."""
    import numpy as np

    from course_lib import students
    from course_lib.gpt.model import build_model
    from course_lib.gpt.settings import Settings
    from course_lib.gpt.training.trainer import Trainer

    build_model.BALANCING_LOSS_WEIGHT, settings = balance, Settings(**sizes)
    inside = everyone.Get_rank() < settings.mesh.size
    group = everyone.Split(color=int(not inside), key=everyone.Get_rank())
    functions = students.load(place)
    get_ipython().user_ns["trainer"] = (
        Trainer(settings, functions, group, np.random.default_rng(0).geometric(0.05, 5000).astype(np.uint8)) if inside else None
    )


def go(steps):
    """Train; returns for each step the loss and the gradients' norm before clipping."""
    return [(trainer.train_step(), trainer.norm) for _ in range(steps)] if trainer else []


def clipped():
    """The length of the gradients that the optimizer saw."""
    import numpy as np

    trainer.train_step()
    total = np.empty(1)
    everyone.Allreduce(np.array([trainer._squared_norm()]), total)
    return trainer.norm, float(np.sqrt(total[0]))


def weights():
    return [layer.weight for layer in trainer.stage.layers if hasattr(layer, "experts")] if trainer else []


def put(folder):
    from course_lib.gpt.training import full_state

    trainer.functions.save(folder, trainer.step, full_state.local_shards(trainer), trainer.groups.ordered)


def take(folder):
    from course_lib.gpt import generate
    from course_lib.gpt.training import full_state

    full_state.restore(trainer, *trainer.functions.load(folder, trainer.groups.ordered))
    return generate.generate(trainer, "def ", 12)


def moved(steps):
    from course_lib import traffic
    from course_lib.gpt.training import step_costs

    traffic.reset()
    for _ in range(steps):
        trainer.train_step()
    return step_costs.bytes_by_axis(trainer, steps), step_costs.memory_by_kind(trainer)


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
    """Losses and lengths of eight steps on one rank, with plain loops and none of the student's functions."""
    ranks.call(start, dict(sizes=SMALL))
    steps = ranks.call(go, dict(steps=8))[0]
    assert steps[-1][0] < steps[0][0] - 0.5 and all(norm > 1 for _, norm in steps)  # all are clipped
    return steps


@pytest.mark.parametrize("grid", [pytest.param(grid, marks=[pytest.mark.slow] * (len(grid) < 3)) for grid in GRIDS], ids=str)
def test_every_grid_trains_the_same_model_and_another_goes_on(ranks, alone, grid, tmp_path):
    ranks.call(start, dict(sizes=SMALL | grid))
    np.testing.assert_allclose(ranks.call(go, dict(steps=4)), [alone[:4]] * 4, rtol=1e-5, atol=2e-5)
    ranks.call(put, dict(folder=str(tmp_path)))
    other = GRIDS[(GRIDS.index(grid) + 1) % len(GRIDS)]
    ranks.call(start, dict(sizes=SMALL | other))
    wrote = ranks.call(take, dict(folder=str(tmp_path)))
    np.testing.assert_allclose(ranks.call(go, dict(steps=4)), [alone[4:]] * 4, rtol=1e-5, atol=2e-5)
    assert wrote[0].startswith("def ") and wrote[1:] == [""] * 3


@pytest.mark.parametrize("grid", [dict(dp=4), dict(dp=2, tp=2, sequence=True, fsdp=True)], ids=str)
def test_gradients_are_clipped_to_the_length_that_is_asked_for(ranks, grid):
    for clip, longer in ((0.5, True), (1e9, False)):
        ranks.call(start, dict(sizes=SMALL | grid | dict(clip=clip)))
        for norm, seen in ranks.call(clipped):
            assert (norm > clip) == longer
            np.testing.assert_allclose(seen, min(clip, norm), rtol=1e-5)


def test_a_pipeline_that_goes_back_in_any_order_trains_the_same_when_sharded(ranks, functions, tmp_path):
    for path in functions.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    text, forwards = (functions / "transformer_impl.py").read_text(), "for k, (x, _) in enumerate(micro_batches):\n        grad = share"
    assert text.count(forwards) == 1
    backwards = forwards.replace("enumerate(micro_batches)", "reversed(list(enumerate(micro_batches)))")
    (tmp_path / "transformer_impl.py").write_text(text.replace(forwards, backwards))
    losses, sizes = [], SMALL | dict(dp=2, pp=2, micro_batches=2, schedule="gpipe")
    for place in (functions, tmp_path):
        ranks.run(f"place = {str(place)!r}")
        ranks.call(start, dict(sizes=sizes | dict(fsdp=True)))
        losses.append(ranks.call(go, dict(steps=4)))
    ranks.run(f"place = {str(functions)!r}")
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_the_balancing_loss_is_counted_once(ranks):
    for grid, weight in ((dict(dp=2), 0.02), (dict(dp=4, micro_batches=2), 0.02), (dict(dp=2, tp=2, sequence=True), 0.01)):
        ranks.call(start, dict(sizes=SMALL | dict(experts=4) | grid))
        assert next(found for found in ranks.call(weights) if found) == pytest.approx([weight] * 4)


def test_experts_learn_the_same_where_none_is_full(ranks):
    sizes = SMALL | dict(experts=4, capacity=4.0, micro_batches=1)
    # A token between two experts may go to the other one by a rounding: so these are not equal to the last digits.
    # Where tensor parallel ranks have other tokens, others meet in the balancing loss: those grids are compared without it.
    for balance, grids in (
        (0.01, (dict(dp=2), dict(dp=4), dict(dp=2, tp=2), dict(dp=2, pp=2), dict(dp=2, cp=2))),
        (0.0, (dict(dp=2, tp=2, sequence=True),)),
    ):
        ranks.call(start, dict(sizes=sizes, balance=balance))
        want = np.array(ranks.call(go, dict(steps=6))[0])[:, 0]
        for grid in grids:
            ranks.call(start, dict(sizes=sizes | grid, balance=balance))
            found = np.array(ranks.call(go, dict(steps=6))[0])
            np.testing.assert_allclose(found[:, 0], want, rtol=0, atol=2e-3, err_msg=str(grid))


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
    sent = []
    for micro_batches in (1, 2):  # with twice as many, weights are gathered twice as often, and gradients reduced as before
        ranks.call(start, dict(sizes=SMALL | dict(dp=4, fsdp=True, micro_batches=micro_batches)))
        sent.append(ranks.call(moved, dict(steps=2))[0][0]["dp"])
    gathers, reduced = 2 * shared["parameters"] * 3, shared["parameters"] * 3
    assert sent[0] == pytest.approx(gathers + reduced, rel=0.01) and sent[1] == pytest.approx(2 * gathers + reduced, rel=0.01)


def gpt(n, *words, functions, out, **options):
    small = [word for name, size in SMALL.items() for word in (f"--{name}", str(size))]
    return mpiexec(n, "-m", "course_lib.gpt", *small, "--functions", str(functions), "--out", str(out), *words, **options)


@pytest.mark.slow
def test_a_run_goes_on_after_its_end_on_another_grid(functions, tmp_path):
    whole, parts = (gpt(4, "--tp", "2", "--steps", "12", functions=functions, out=tmp_path / "a"), None)
    assert whole.returncode == 0, whole.stderr
    parts = gpt(4, "--tp", "2", "--sequence", "--steps", "6", "--every", "2", functions=functions, out=tmp_path / "b")
    assert parts.returncode == 0, parts.stderr
    again = gpt(4, "--tp", "2", "--steps", "9", functions=functions, out=tmp_path / "b")
    assert again.returncode == 2 and f"{tmp_path / 'b'} already contains a run: continue it with --resume" in again.stderr
    more = gpt(2, "--pp", "2", "--steps", "12", "--resume", functions=functions, out=tmp_path / "b")
    assert more.returncode == 0, more.stderr
    losses = [re.search(r"loss +([\d.]+ to [\d.]+)", run.stdout)[1] for run in (whole, more)]
    assert losses[0] == losses[1] and "after 6 steps" in more.stdout and "after 12 steps" in more.stdout
    page = (tmp_path / "b" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4 and "http" not in page and "pp 2" in page
    index = json.loads((tmp_path / "b" / "checkpoint" / "index.json").read_text())
    assert index["step"] == 12 and index["ranks"] == 2


BAD = {
    "a grid that does not fit": (["--tp", "2", "--pp", "2", "--dp", "2"], "--dp 2 --pp 2 --tp 2 need 8 ranks, but mpiexec started 2: use"),
    "heads": (["--tp", "2", "--heads", "1"], "tp=2 does not divide 1, the heads"),
    "layers": (["--pp", "2", "--depth", "3"], "pp=2 does not divide 3, the depth"),
    "width": (["--heads", "5"], "heads=5 does not divide 32, the width"),
    "texts": (["--batch", "3"], "dp=2 does not divide 3, the batch"),
    "micro-batches": (["--micro-batches", "3"], "micro_batches=3 does not divide 4"),
    "experts and fsdp": (["--experts", "2", "--fsdp"], "experts and fsdp cannot be combined"),
    "a text that cannot be cut": (["--cp", "2", "--length", "30"], "2 × cp=4 does not divide 30, the length"),
    "sequence alone": (["--sequence"], "tp is 1"),
    "no such text": (["--text", "nowhere"], "there is no nowhere to read text from"),
    "nothing to go on from": (["--resume"], "there is no checkpoint in"),
    "no width": (["--width", "0"], "width must be at least 1; got 0"),
    "no end of a rate": (["--lr", "inf"], "lr must be a number of at least 1e-12; got inf"),
    "a name that is too long": (["--text", "x" * 300], "File name too long"),
    "a name of any bytes": (["--text", "n\udcff"], "to read text from"),
    "too short a text": (["--text", os.devnull], "there is no text in"),
    "no such functions": (["--functions", "nowhere"], "the folder nowhere with your functions does not exist"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_command_that_cannot_be_carried_out_gets_one_sentence(case, functions, tmp_path):
    words, said = BAD[case]
    done = gpt(2, *words, functions=functions, out=tmp_path / "run")
    assert done.returncode != 0 and said in done.stderr and done.stderr.count("course_lib.gpt:") == 1
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_is_in_the_folder_already_is_not_written_over(functions, tmp_path):
    kept = tmp_path / "checkpoint" / "mine.pt"
    kept.parent.mkdir()
    kept.write_text("mine")
    done = gpt(2, "--steps", "1", functions=functions, out=tmp_path)
    assert done.returncode == 2 and "has files that belong to no run" in done.stderr and kept.read_text() == "mine"
    kept.unlink()
    (tmp_path / "run.json").write_text('{"mine": 1}')
    done = gpt(2, "--steps", "1", functions=functions, out=tmp_path)
    assert done.returncode == 2 and "was not written by this program" in done.stderr
    assert (tmp_path / "run.json").read_text() == '{"mine": 1}'


@pytest.mark.slow
def test_a_run_that_diverges_says_so_and_keeps_its_checkpoint(functions, tmp_path):
    assert gpt(2, "--steps", "2", functions=functions, out=tmp_path / "run").returncode == 0
    notes = tmp_path / "run" / "run.json"
    notes.write_text(notes.read_text().replace('"lr": 0.002', '"lr": 1000000.0'))
    done = gpt(2, "--steps", "9", "--resume", "--every", "1000", "--lr", "1e6", functions=functions, out=tmp_path / "run")
    assert done.returncode == 1 and "training has diverged" in done.stderr and "Traceback" not in done.stderr
    assert (
        "The checkpoint of step 2 is complete" in done.stderr
        and json.loads((tmp_path / "run" / "checkpoint" / "index.json").read_text())["step"] == 2
    )


def test_functions_that_one_rank_cannot_load_are_said_once(functions, tmp_path):
    for path in functions.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    alone = "from course_lib.collectives import Communicator\nif Communicator().Get_rank() == 1:\n    raise ValueError('only here')\n"
    (tmp_path / "transformer_impl.py").write_text(alone + (functions / "transformer_impl.py").read_text())
    done = gpt(2, "--steps", "1", functions=tmp_path, out=tmp_path / "run")
    assert done.returncode == 2 and done.stderr.count("course_lib.gpt:") == 1 and "ValueError: only here" in done.stderr


@pytest.mark.slow
def test_another_text_of_the_same_name_is_no_text_to_go_on_with(functions, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("to be or not to be " * 50)
    words = ["--text", str(text), "--steps", "2"]
    assert gpt(2, *words, functions=functions, out=tmp_path / "run").returncode == 0
    text.write_text("that is the question " * 50)
    done = gpt(2, *words, "--resume", functions=functions, out=tmp_path / "run")
    assert done.returncode == 2 and "was trained on another text" in done.stderr


@pytest.mark.slow
def test_a_terminal_of_ascii_shows_a_run_to_its_end(functions, tmp_path):
    done = gpt(1, "--steps", "1", functions=functions, out=tmp_path / "run", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "run" / "report.html").read_text()
    assert not re.search("[\x00-\x08\x0b-\x1f]", page)


def test_a_missing_function_is_named(tmp_path):
    done = gpt(2, "--tp", "2", functions=tmp_path, out=tmp_path / "run")
    assert done.returncode != 0 and "copy_to_group is missing. Finish the notebook 21_tensor_parallel" in done.stderr


@pytest.mark.slow
def test_a_checkpoint_that_is_damaged_or_of_another_model_is_left_as_it_is(functions, tmp_path):
    out = tmp_path / "run"
    assert gpt(2, "--steps", "2", functions=functions, out=out).returncode == 0
    before = {path: path.read_bytes() for path in (out / "checkpoint").iterdir()}
    other = gpt(2, "--steps", "4", "--resume", "--width", "64", functions=functions, out=out)
    assert other.returncode != 0 and "has width 32, but this one 64" in other.stderr
    notes = out / "run.json"
    notes.write_text(notes.read_text().replace('"width": 32', '"width": 64'))
    other = gpt(2, "--steps", "4", "--resume", "--width", "64", functions=functions, out=out)
    assert other.returncode != 0 and "the checkpoint is from another model: parameters/" in other.stderr
    notes.write_text(notes.read_text().replace('"width": 64', '"width": 32'))
    assert before == {path: path.read_bytes() for path in (out / "checkpoint").iterdir()}
    path = out / "checkpoint" / "2-1.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    broken = gpt(2, "--steps", "4", "--resume", functions=functions, out=out)
    assert broken.returncode != 0 and "2-1.safetensors is damaged" in broken.stderr and broken.stderr.count("course_lib.gpt:") == 1


@pytest.mark.slow
def test_a_full_disk_leaves_the_checkpoint_before(functions, tmp_path):
    out = tmp_path / "run"
    assert gpt(2, "--steps", "2", functions=functions, out=out).returncode == 0
    for path in functions.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))\n"
    (tmp_path / "transformer_impl.py").write_text(limit + (tmp_path / "transformer_impl.py").read_text())
    done = gpt(2, "--steps", "4", "--resume", functions=tmp_path, out=out)
    assert done.returncode != 0 and "could not write the checkpoint of step 4" in done.stderr and "Traceback" not in done.stderr
    assert json.loads((out / "checkpoint" / "index.json").read_text())["step"] == 2
    assert gpt(2, "--steps", "4", "--resume", functions=functions, out=out).returncode == 0


def test_text_comes_from_a_folder_and_is_the_same_for_all(tmp_path):
    with pytest.raises(TextError, match="there is no text in"):
        load_text(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("Käse und Brot")
    (tmp_path / "b.bin").write_bytes(bytes(100))
    text, name = load_text(tmp_path)
    assert text.tobytes().decode() == "Käse und Brot" and name.endswith(", 1 file")
    with pytest.raises(TextError, match="has 14 bytes, but a text of 14 positions needs 15"):
        sample_batch(text, 0, 2, 14, 0)
    tokens, labels = sample_batch(text, 3, 4, 8, 0)
    assert tokens.shape == labels.shape == (4, 8) and np.array_equal(tokens[:, 1:], labels[:, :-1])
    assert len(load_text()[0]) <= MAX_TEXT_BYTES


def test_a_link_of_the_library_that_leads_nowhere_is_passed_over(tmp_path, monkeypatch):
    """As sitecustomize.py does in a sandbox without /etc."""
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "sitecustomize.py").symlink_to(tmp_path / "gone.py")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    text, name = load_text()
    assert text.tobytes() == b"a = 1\n" and name.endswith(", 1 file")
