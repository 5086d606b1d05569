"""Part 36's checks: each case tells right from wrong, the bound holds for right ways to send, and the reference is Muon."""

import numpy as np
import pytest
from mpi4py import MPI

from course_lib.autograd import Adam, Parameter
from course_lib.check.muon.iteration import polynomial
from course_lib.check.muon.on_ranks import mix
from course_lib.check.muon.step import LARGEST, NUMBERS, PASSES, SETTINGS, STEPS, MuonCheck, bytes_sent
from course_lib.collectives import Communicator
from course_lib.zero import ShardedAdam

GRIDS = [(4, 1), (3, 1), (2, 1), (1, 1), (2, 2), (1, 4), (1, 2)]


def drawn(grid, dtype=np.float64):
    check = MuonCheck("ShardedMuon", None, show=False)
    return check, check._draw(list(range(grid[0] * grid[1])), grid, np.dtype(dtype))


@pytest.mark.parametrize("grid", GRIDS)
def test_a_case_tells_owners_and_parts_apart(grid):
    for _ in range(30):
        _, case = drawn(grid)
        n = len(case.ranks)
        assert len({w.shape for w in case.weights}) >= 4
        assert sorted(case.axes) == [0, 0, 0, 1, 1, 1]
        assert len(set(case.owner)) == n - (n > 2) and (n == 1 or case.owner[0] != 0)
        assert case.owner != sorted(case.owner) or n == 1
        assert case.owner != [i % n for i in range(6)] or n == 1
        factors = [max(1, w.shape[1] / w.shape[0]) for w in case.weights]
        assert {1.0, 2.25, 4.0} == set(factors)  # of which the roots are exact
        assert case.weights[1].shape == case.weights[2].shape and case.owner[1] == case.owner[2]
        for i, w in enumerate(case.weights):
            parts = [case.part(w, i, key) for key in range(grid[1])]
            assert np.array_equal(np.concatenate(parts, case.axes[i]), w)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_right_ways_keep_the_bound_and_an_all_reduce_does_not(grid, dtype):
    size = np.dtype(dtype).itemsize
    for _ in range(30):
        _, case = drawn(grid, dtype)
        matrices, rest = sum(w.size for w in case.weights) // grid[1], sum(x.size for x in case.rest)
        bound = PASSES[grid[1] > 1] * size * (matrices + rest)
        assert max(bytes_sent(case, size).values()) <= bound
        if grid == (4, 1):  # all ranks but one pass on all broadcasts
            assert size * (1.5 * matrices + matrices + 1.5 * rest) > bound + 512


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_expected_parameters_are_exact_and_differ_from_those_of_known_mistakes(grid, name, settings):
    check, case = drawn(grid, name)
    case.settings = settings
    dp = grid[0]
    for step in range(STEPS):
        grads = [np.stack([dp * check._whole(*w.shape, most=LARGEST[name]) for _ in range(dp)]) for w in case.weights]
        rest = [check.random.standard_normal((dp, *x.shape)) for x in case.rest]
        numbers = check.random.permutation(NUMBERS)[: len(case.ranks)].tolist()
        before, velocity = [w.copy() for w in case.weights], [v.copy() for v in case.velocity]
        known, _ = check._expected(case, grads, rest, numbers)
        for i, want in enumerate(case.weights):
            short = [x.astype(name) for x in (before[i], velocity[i], grads[i])]
            v = np.asarray(settings["momentum"], name) * short[1] + short[2].sum(axis=0) / np.asarray(dp, name)
            factor = max(1, want.shape[1] / want.shape[0]) ** 0.5
            got = short[0] - np.asarray(settings["lr"] * factor * numbers[case.owner[i]], name) * mix(v, 1.0).astype(name)
            assert np.array_equal(got, want), "another order of operations rounds"
            for what, arrays in known.items():
                same = np.array_equal(arrays[i], want)
                first = step == 0 and "without momentum" in what
                if what != "the result without the factor of the matrix's shape" and "factor" in what:
                    continue
                assert same == (first or ("factor" in what and factor == 1)), what
        for what, arrays in known.items():
            wrong = [not np.array_equal(got, want) for got, want in zip(arrays, case.weights, strict=True)]
            assert any(wrong) != (step == 0 and "without momentum" in what), what


def test_no_smaller_format_holds_the_gradients():
    check, _ = drawn((4, 1))
    for name, smaller in (("float32", np.float16), ("float64", np.float32)):
        with np.errstate(over="ignore"):
            whole = 4 * check._whole(20, 20, most=LARGEST[name])
            assert np.array_equal(whole.astype(name), whole) and np.any(whole.astype(smaller) != whole)


def test_a_part_of_what_is_orthogonalised_does_not_come_from_a_part():
    x = np.random.default_rng(0).integers(-9, 10, (8, 6)).astype(float)
    for axis, n in ((0, 2), (1, 2), (0, 4)):
        parts = [mix(part, 1.0) for part in np.split(x, n, axis)]
        assert np.mean(np.concatenate(parts, axis) == mix(x, 1.0)) < 0.5


def test_the_polynomial_brings_all_but_tiny_values_near_one():
    found = polynomial(np.linspace(0.01, 1, 500), 5)
    assert found.min() > 0.6 and found.max() < 1.25
    assert polynomial(np.array([1e-5]), 5)[0] < 0.01


def test_adam_on_shards_is_adam():
    random = np.random.default_rng(0)
    start = [random.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (5,), (1,))]
    one, cut = ([Parameter(x.copy()) for x in start] for _ in range(2))
    whole, sharded = Adam(one, 0.1), ShardedAdam(cut, Communicator(MPI.COMM_SELF), 0.1)
    for _ in range(3):
        for p, q in zip(one, cut, strict=True):
            p.grad = q.grad = random.standard_normal(p.shape).astype(np.float32)
        whole.step()
        sharded.step()
    for p, q in zip(one, cut, strict=True):
        assert p.dtype == q.dtype and np.array_equal(p.data, q.data)
