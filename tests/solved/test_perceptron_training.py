"""The perceptron trains alike on every grid of ranks, and what it says of memory and traffic is so."""

from types import SimpleNamespace

import numpy as np
import pytest
from machine import fashion_files, training

from course_lib.layers import MLP, softmax_cross_entropy
from course_lib.students import MissingFunction
from course_lib.training import Config, batch_order

NAIVE = [(mp, dp, False) for mp in (1, 2) for dp in (1, 2, 4, 8) if mp * dp <= 8]
MEGATRON = [(mp, dp, True) for mp in (1, 2, 4, 8) for dp in (1, 2, 4, 8) if mp * dp <= 8]


def train(mp_size, dp_size, megatron, dtype, folder, batch_size=24, data="digits"):
    """Runs on the ranks: losses, accuracy, this rank's weights and biases, and its place."""
    from course_lib import students, training

    n = mp_size * dp_size
    part = comm.Split(color=int(rank >= n), key=rank)
    if rank >= n:
        return None
    config = training.Config(mp_size, dp_size, megatron, data=data, batch_size=batch_size, dtype=dtype)
    run = training.TrainingRun(config, students.load(folder), part)
    losses = run.steps(10) + run.steps(10**6)
    m = run.model
    return losses, run.accuracy(), (m.fc1.w, m.fc1.b, m.fc2.w, m.fc2.b), run.moved()


def whole(pieces, mp_size, megatron):
    """The unsharded weights from those of the ranks of one model parallel group."""
    w1, b1, w2, b2 = ([p[i] for p in pieces] for i in range(4))
    first = np.concatenate(w1, axis=1), np.concatenate(b1)
    second = (np.concatenate(w2, axis=0), b2[0]) if megatron else (np.concatenate(w2, axis=1), np.concatenate(b2))
    return *first, *second


def close(got, want, rtol):
    """Equal, relative to the largest value."""
    return np.max(np.abs(np.asarray(got) - want)) <= rtol * np.max(np.abs(want))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), ("float64", 1e-10)])
def test_every_grid_trains_as_a_single_process_does(eight, functions, dtype, rtol):
    common = dict(dtype=dtype, folder=str(functions))
    ((losses, accuracy, weights, moved), *others) = eight.call(train, dict(mp_size=1, dp_size=1, megatron=False, **common))
    assert others == [None] * 7 and moved == [] and len(losses) == 60
    for mp_size, dp_size, megatron in NAIVE + MEGATRON:
        case = f"mp {mp_size}, dp {dp_size}, megatron {megatron}"
        answers = eight.call(train, dict(mp_size=mp_size, dp_size=dp_size, megatron=megatron, **common))[: mp_size * dp_size]
        for first in range(0, len(answers), mp_size):
            group = answers[first : first + mp_size]
            for theirs, share, pieces, _ in group:
                assert np.allclose(theirs, losses, rtol=rtol, atol=0), case
                assert share == accuracy, case
                assert all(p.dtype == dtype for p in pieces)
            for got, want in zip(whole([a[2] for a in group], mp_size, megatron), weights, strict=True):
                assert close(got, want, rtol), case


def test_digits_are_learned_in_one_epoch(eight, functions):
    answers = eight.call(train, dict(mp_size=2, dp_size=4, megatron=True, dtype="float32", folder=str(functions)))
    assert answers[0][1] >= 0.90


if fashion_files():  # where they are not, conftest.py says so

    def test_fashion_mnist_is_learned_in_one_epoch(functions):
        done = training(2, "--dp-size", "2", "--data", "fashion-mnist", folder=functions)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout.split("test accuracy ")[1].split()[0]) >= 0.83


def test_the_layers_gradients_are_those_of_the_loss():
    """Against finite differences, in float64."""
    random = np.random.default_rng(3)
    model = MLP((5, 6, 4), None, None, seed=1, dtype=np.float64)
    x, labels = random.standard_normal((7, 5)), random.integers(0, 4, 7)

    def loss():
        return softmax_cross_entropy(model.forward(x), labels)[0]

    _, grad = softmax_cross_entropy(model.forward(x), labels)
    model.backward(grad)
    for values, found in ((model.weights, model.grad_weights.copy()), (model.biases, model.grad_biases.copy())):
        for i in range(values.size):
            slope = 0.0
            for change in (1e-6, -1e-6):
                values[i] += change
                slope += loss() / (2 * change)
                values[i] -= change
            assert abs(slope - found[i]) < 1e-6


def hold(mp_size, dp_size, megatron, folder):
    """Runs on the ranks: the account of memory for 784-256-10 and a batch of 60."""
    from course_lib import memory, students
    from course_lib.layers import MLP

    n = mp_size * dp_size
    part = comm.Split(color=int(rank >= n), key=rank)
    if rank >= n:
        return None
    x, y = np.ones((60 // dp_size, 784), np.float32), np.arange(60 // dp_size) % 10
    found = students.load(folder)
    seen = []
    for _ in range(4):  # caches fill the first time, and other threads of the process allocate now and then
        with memory.watch() as held:
            model = MLP((784, 256, 10), part, found, mp_size, dp_size, megatron)
            for _ in range(2):
                model.step(x, y, 0.1)
            left = dict(held.now)
            del model
        seen.append(held.true_peak)
    return held.peak, min(seen), left


@pytest.mark.parametrize(
    ("mp_size", "dp_size", "megatron"), [(1, 1, False), (1, 2, False), (2, 1, False), (2, 2, False), (2, 2, True), (8, 1, True)]
)
def test_the_account_of_memory_agrees_with_what_was_allocated(eight, functions, mp_size, dp_size, megatron):
    answers = eight.call(hold, dict(mp_size=mp_size, dp_size=dp_size, megatron=megatron, folder=str(functions)))
    for peak, true_peak, left in answers[: mp_size * dp_size]:
        second = 256 // mp_size * 10 + 10 if megatron else (256 * 10 + 10) // mp_size
        parameters = 4 * ((784 + 1) * 256 // mp_size + second)
        assert peak["parameters"] == peak["gradients"] == left["parameters"] == parameters
        assert abs(sum(peak.values()) - true_peak) <= 0.1 * true_peak


def test_traffic_is_what_the_formulas_say(eight, functions):
    common = dict(folder=str(functions), dtype="float32")
    answers = eight.call(train, dict(mp_size=4, dp_size=2, megatron=True, **common))
    moved = {(operation, len(ranks)): (calls, payload) for operation, ranks, calls, payload in answers[0][3]}
    weights = 4 * (65 * 64 + 64 * 10 + 10)
    assert moved == {("Allreduce", 4): (1, 12 * 10 * 4), ("Allreduce", 2): (2, weights)}
    answers = eight.call(train, dict(mp_size=2, dp_size=1, megatron=False, **common))
    moved = {operation: (calls, payload) for operation, _, calls, payload in answers[1][3]}
    assert moved == {"Allgather": (2, 24 * (256 + 10) * 4), "Reduce_scatter": (1, 24 * 256 * 4)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(mp_size=4), "mp_size=4 does not divide the 10 classes"),
        (dict(mp_size=3, megatron=True), "mp_size=3 does not divide the 256 hidden units"),
        (dict(dp_size=5), "dp_size=5 does not divide the batch of 24"),
        (dict(mp_size=4, dp_size=4, megatron=True), "need 16 ranks"),
        (dict(dp_size=0), "dp_size must be at least 1"),
        (dict(lr=0.0), "lr must be positive"),
    ],
)
def test_sizes_that_do_not_fit_are_said(change, said):
    with pytest.raises(ValueError, match=said):
        Config(**change)


def test_a_missing_or_misspelt_function_names_the_notebook():
    comm = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 2)
    with pytest.raises(MissingFunction, match=r"collect_weight_grad is missing\. Finish the notebook 07_weight_grad"):
        MLP((784, 256, 10), comm, SimpleNamespace(get_info=lambda *a: (0, 0, comm, comm, *a[-2:])), 1, 2)
    with pytest.raises(MissingFunction, match=r"collect_weight_gard: a misspelling\?"):
        bad = SimpleNamespace(get_info=lambda *a: (0, 0, comm, comm, *a[-2:]), collect_weight_gard=print)
        MLP((784, 256, 10), comm, bad, 1, 2)
    with pytest.raises(ValueError, match="the parts do not make up the weight"):
        MLP((784, 256, 10), comm, SimpleNamespace(get_info=lambda *a: (0, 0, comm, comm, *a[-2:])), 2, 1)


@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_every_grid_sees_the_same_batches(dp_size):
    one = batch_order(1003, 40, 1, np.random.default_rng(5)).reshape(25, 40)
    order = batch_order(1003, 40, dp_size, np.random.default_rng(5)).reshape(dp_size, 25, 40 // dp_size)
    assert [sorted(b) for b in order.swapaxes(0, 1).reshape(25, 40).tolist()] == [sorted(b) for b in one.tolist()]


def test_it_trains_from_a_training(functions):
    done = training(4, "--mp-size", "2", "--dp-size", "2", "--megatron-mp", folder=functions)
    assert done.returncode == 0, done.stderr
    assert "Megatron mp 2, dp 2, digits: 60 steps" in done.stdout
    accuracy = float(done.stdout.split("test accuracy ")[1].split()[0])
    assert accuracy >= 0.90
    assert "Allreduce among ranks 0, 2, 2 calls" in done.stdout


@pytest.mark.parametrize(
    ("n", "words", "said"),
    [
        (2, ["--mp-size", "2", "--dp-size", "2"], "need 4 ranks, but mpiexec started 2: use mpiexec -n 4"),
        (4, ["--mp-size", "4"], "mp_size=4 does not divide the 10 classes"),
        (1, ["--data", "cifar"], "invalid choice: 'cifar'"),
        (1, ["--batch-size", "5000"], "a batch of 5000 is larger than the data set, which has 1440 samples"),
        (1, ["--epochs", "many"], "invalid int value: 'many'"),
        (1, ["--depth", "3"], "unrecognized arguments: --depth 3"),
    ],
)
def test_a_bad_command_gets_a_sentence_and_2(functions, n, words, said):
    done = training(n, *words, folder=functions)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr


def test_without_functions_the_notebook_is_named(tmp_path):
    done = training(2, "--dp-size", "2", folder=tmp_path)
    assert done.returncode == 2
    assert "Finish the notebook 01_data_split" in done.stderr and "Traceback" not in done.stderr


def test_a_function_that_fails_on_one_rank_ends_the_run_with_its_line(functions, tmp_path):
    for file in functions.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    with (tmp_path / "func_impl.py").open("a") as file:
        file.write("\n\ndef collect_weight_grad(w, b, comm):\n    if comm.Get_rank() == 1:\n        w = w / b\n")
        file.write("    comm.Barrier()\n    return w, b\n")
    done = training(2, "--dp-size", "2", folder=tmp_path)
    assert done.returncode == 1
    assert "rank 1:     w = w / b" in done.stderr and "rank 0: " in done.stderr and "waits in Barrier" in done.stderr
