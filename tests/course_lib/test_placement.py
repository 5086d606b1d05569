"""An array's placement on an axis: true claims, false claims, and placements found from values alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib import placement, plots
from course_lib.check import Check, CheckFailed
from course_lib.mesh import Mesh
from course_lib.placement import WrongKind, partial, replicated, sharded

KINDS = st.sampled_from([replicated, partial, sharded(0), sharded(1)])


def pieces(kind, full, n, random):
    """The pieces of an array of integers that n ranks hold, for this kind of placement."""
    if kind == replicated:
        return [full] * n
    if kind == partial:
        parts = [random.integers(-9, 9, full.shape).astype(float) for _ in range(n - 1)]
        return [*parts, full - sum(parts)] if parts else [full]
    return np.array_split(full, n, axis=kind.dim)


@given(kind=KINDS, n=st.integers(1, 5), rows=st.integers(1, 6), columns=st.integers(1, 6), seed=st.integers(0, 999))
def test_what_is_cut_summed_or_copied_is_found_whole_again(kind, n, rows, columns, seed):
    random = np.random.default_rng(seed)
    full = random.integers(1, 99, (rows, columns)).astype(float)
    parts = pieces(kind, full, n, random)
    assert np.array_equal(placement.assemble(kind, parts), full)
    assert placement.difference(kind, parts, full) == ""
    assert kind in placement.kinds_of(parts, full)
    if n > 1 and kind != replicated:
        parts[0] = parts[0] + 1.0 if parts[0].size else np.ones((1, columns))
        assert placement.difference(kind, parts, full) != ""


@given(
    dp=st.integers(1, 3),
    tp=st.integers(1, 3),
    on_dp=st.sampled_from([replicated, partial, sharded(0)]),
    on_tp=KINDS,
    seed=st.integers(0, 99),
)
def test_on_a_grid_each_axis_has_its_own_kind(dp, tp, on_dp, on_tp, seed):
    random, mesh = np.random.default_rng(seed), Mesh(dp=dp, tp=tp)
    full = random.integers(1, 99, (6, 6)).astype(float)
    held = [piece for part in pieces(on_dp, full, dp, random) for piece in pieces(on_tp, part, tp, random)]
    assert np.array_equal(placement.assemble_mesh(mesh, {"dp": on_dp, "tp": on_tp}, held), full)


def test_a_partial_gradient_that_is_taken_for_replicated_is_named():
    full = np.array([10.0, 20.0])
    parts = [full * r / 10 for r in (1, 2, 3, 4)]
    assert placement.kinds_of(parts, full) == [partial]
    check = Check("gradients")
    with pytest.raises(
        CheckFailed,
        match=r"the gradient must be replicated over ranks 0–3, and is not: rank 0 and ranks 1–3 hold different values; it is partial",
    ) as failed:
        check.distributed(parts, replicated, full, name="the gradient", ranks=[0, 1, 2, 3], cause="no all-reduce")
    assert "A usual cause: no all-reduce." in str(failed.value)
    check.distributed([full] * 4, replicated, full, name="the gradient", ranks=[0, 1, 2, 3])


def test_what_cannot_be_is_said():
    a, b = np.zeros((2, 3)), np.zeros((3, 3))
    with pytest.raises(WrongKind, match=r"not parts along dimension 1"):
        placement.assemble(sharded(1), [a, b])
    with pytest.raises(WrongKind, match=r"rank 0 has shape \(2, 3\), and rank 1 \(3, 3\)"):
        placement.assemble(partial, [a, b])
    with pytest.raises(WrongKind, match="on axis tp, rank 0 and rank 1 hold different values"):
        placement.assemble_mesh(Mesh(dp=1, tp=2), {"dp": replicated}, [a, a + 1])
    assert "not the whole" in placement.difference(partial, [a, a], a + 1)
    assert placement.difference(replicated, [np.full((2, 3), np.nan)] * 2, a) != ""


def test_the_table_is_its_own_conjugate():
    """Backward of each operator is the forward of its mirror: f and g, gather and scatter."""
    f, g, gather, scatter = placement.OPERATORS
    for one, other in ((f, g), (gather, scatter)):
        assert (one.forward, one.backward) == (other.backward, other.forward)
    for op in placement.OPERATORS:  # a replicated array's gradient is partial before the collective that makes it whole
        assert (op.grad_after == partial) == (op.backward in ("all-reduce", "reduce-scatter"))
        assert (op.before == partial) == (op.forward in ("all-reduce", "reduce-scatter"))


def test_the_pictures_say_what_they_show():
    assert "gradient partial to replicated by all-reduce" in repr(plots.operators())
    picture = plots.kinds({"weight": {"dp": replicated, "tp": sharded(1)}}, {"dp": 2, "tp": 4}, "A weight")
    assert repr(picture) == "A weight: weight: replicated on dp, sharded along dimension 1 on tp."
    assert picture.png().startswith(b"\x89PNG")
