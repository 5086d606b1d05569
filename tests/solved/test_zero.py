"""The stages of ZeRO train alike, hold what the paper's formula says, and gather no more than they must."""

from itertools import pairwise

import numpy as np
import pytest
from machine import fashion_files, mpiexec, training

from course_lib.zero import ZeroModel, state_bytes_by_kind

LARGE = (256, 512, 512, 10)  # shards dominate: 401,000 parameters


def train(stage, size, dims, dtype, folder, steps=12):
    """Runs on the ranks: losses and the whole weights after some steps with the same batches in every grid."""
    from itertools import pairwise

    from course_lib import students, zero

    part = comm.Split(color=int(rank >= size), key=rank)
    if rank >= size:
        return None
    model = zero.ZeroModel(dims, part, stage, students.load(folder), lr=0.01, seed=3, dtype=np.dtype(dtype))
    random, losses, each = np.random.default_rng(5), np.empty(steps), 24 // size
    for i in range(steps):
        x, y = random.standard_normal((24, dims[0])).astype(dtype), random.integers(0, dims[-1], 24)
        mine = slice(part.Get_rank() * each, (part.Get_rank() + 1) * each)
        losses[i] = model.step(x[mine], y[mine])
    total = np.empty_like(losses)
    part.Allreduce(losses, total)
    weights = []
    for layer, shape in zip(model.layers, pairwise(dims), strict=True):
        if stage == 3:
            weights.append(layer._gather(layer.w_shard, shape))
        else:
            weights.append(layer.w.copy())
    return total / size, weights


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_stages_train_as_one_process_does(eight, functions, dtype):
    common, rtol = dict(dims=(13, 11, 7, 5), dtype=dtype, folder=str(functions)), 1e-4 if dtype == "float32" else 1e-10
    losses, weights = eight.call(train, dict(stage=0, size=1, **common))[0]
    assert losses[-1] != losses[0]
    for size in (1, 2, 3, 4, 8):
        for stage in (0, 1, 2, 3):
            for theirs, final in eight.call(train, dict(stage=stage, size=size, **common))[:size]:
                assert np.allclose(theirs, losses, rtol=rtol, atol=0), (stage, size)
                for got, want in zip(final, weights, strict=True):
                    assert got.dtype == dtype and np.max(np.abs(got - want)) <= rtol * np.max(np.abs(want)), (stage, size)


def survey(stage, dims, folder, steps=2):
    """Runs on the ranks: `zero.profile` on four of them."""
    from course_lib import students, zero

    part = comm.Split(color=int(rank >= 4), key=rank)
    if rank >= 4:
        return None
    random = np.random.default_rng(rank)
    x, y = random.random((8 * steps, dims[0]), np.float32), random.integers(0, dims[-1], 8 * steps)
    return zero.profile(stage, part, students.load(folder), dims, x, y, steps)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_each_stage_holds_what_the_formula_says(eight, functions, stage):
    said = state_bytes_by_kind(stage, sum((a + 1) * b for a, b in pairwise(LARGE)), 4)
    for found in eight.call(survey, dict(stage=stage, dims=LARGE, folder=str(functions)))[:4]:
        for kind, expected in said.items():
            assert abs(found["most"][kind] - expected) <= 0.1 * expected, kind
        assert found["peak"]["true peak"] >= 0.95 * sum(v for k, v in found["peak"].items() if k != "true peak")


def test_traffic_of_the_stages(eight, functions):
    """Stages 0 to 2 send two arrays of the model's size less 1/n, stage 3 three (its bias is not gathered for backward)."""
    from course_lib.traffic import wire_bytes

    whole = 4 * sum((a + 1) * b for a, b in pairwise(LARGE))
    for stage, factor in enumerate((2, 2, 2, 3)):
        moved = eight.call(survey, dict(stage=stage, dims=LARGE, folder=str(functions)))[0]["moved"]
        sent = sum(wire_bytes(operation, len(ranks), payload) for operation, ranks, _, payload in moved)
        assert abs(sent - factor * 0.75 * whole) < 0.01 * whole, stage


def test_no_more_than_two_layers_are_gathered_at_once(eight, functions):
    dims = (128,) * 13
    for found in eight.call(survey, dict(stage=3, dims=dims, folder=str(functions)))[:4]:
        layer = 4 * 128 * 129
        assert 0.9 * layer < found["most"]["communication buffers"] <= 2.3 * layer  # two, and the shards that are received
        held = sum(found["most"][kind] for kind in ("parameters", "gradients", "optimizer state"))
        assert found["peak"]["true peak"] <= held + 5 * layer, "12 layers whole would be 12"


def test_there_is_no_stage_4_and_a_missing_class_is_named():
    class Alone:
        Get_size = staticmethod(lambda: 1)
        Get_rank = staticmethod(lambda: 0)

    with pytest.raises(ValueError, match="stages 0 to 3; got 4"):
        ZeroModel((2, 2), Alone(), 4)
    with pytest.raises(AttributeError, match=r"ZeroDPAdam is missing\. Finish the notebook 09_zero3_adam"):
        ZeroModel((2, 2), Alone(), 0, object())


def test_the_classes_work_on_a_bare_communicator(functions, tmp_path):
    script = tmp_path / "bare.py"
    script.write_text(
        "import sys\nimport numpy as np\nfrom mpi4py import MPI\n"
        f"sys.path.insert(0, {str(functions)!r})\n"
        "from zero_dp_stage3 import ZeroDPAdam, ZeroDPStage3FCLayer\n"
        "comm = MPI.COMM_WORLD\n"
        "layer = ZeroDPStage3FCLayer(comm, 5, 3, comm.size, full_w=np.arange(15.0).reshape(5, 3), full_b=np.ones(3))\n"
        "out = layer.forward(np.eye(5))\n"
        "assert np.array_equal(out, np.arange(15.0).reshape(5, 3) + 1), out\n"
        "(grad_x,) = layer.backward(np.ones((5, 3)))\n"
        "assert np.array_equal(grad_x, np.tile(np.arange(15.0).reshape(5, 3).sum(1), (5, 1)))\n"
        "before = layer.w_shard.copy()\n"
        "ZeroDPAdam([layer], lr=0.5).step()\n"
        "moved = before - layer.w_shard\n"
        "assert np.allclose(moved[: 15 - comm.rank * moved.size], 0.5) and not np.any(moved[max(0, 15 - comm.rank * moved.size) :])\n"
        "assert not [m for m in sys.modules if m.startswith('course_lib')]\n"
        "print('fine')\n"
    )
    done = mpiexec(3, str(script), cwd=tmp_path)
    assert done.stdout.count("fine") == 3, done.stderr


@pytest.mark.parametrize("stage", [*(pytest.param(stage, marks=pytest.mark.slow) for stage in "012"), "3"])
def test_zero_trains_from_a_training(functions, stage):
    done = training(4, "--zero", stage, "--optimizer", "adam", folder=functions)
    assert done.returncode == 0, done.stderr
    assert f"mp 1, dp 4, ZeRO stage {stage}, digits: 60 steps" in done.stdout
    assert float(done.stdout.split("test accuracy ")[1].split()[0]) >= 0.90


@pytest.mark.parametrize(
    ("n", "words", "said"),
    [
        (4, ["--zero", "3", "--optimizer", "adam", "--mp-size", "2", "--dp-size", "2"], "ZeRO stage 3 is for data parallel training"),
        (2, ["--zero", "3"], "plain gradient descent has none: choose the optimizer adam"),
        (1, ["--zero", "4", "--optimizer", "adam"], "invalid choice: 4"),
        (1, ["--optimizer", "momentum"], "invalid choice: 'momentum'"),
    ],
)
def test_zero_with_what_does_not_fit_gets_a_sentence(functions, n, words, said):
    done = training(n, *words, folder=functions)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


if fashion_files():  # where it is not, conftest.py says so

    def test_stage_3_learns_fashion_mnist_in_one_epoch(functions):
        done = training(4, "--zero", "3", "--optimizer", "adam", "--data", "fashion-mnist", "--batch-size", "120", folder=functions)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout.split("test accuracy ")[1].split()[0]) >= 0.83
