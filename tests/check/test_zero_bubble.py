"""Part 35's checks: what they expect agrees with autograd and the paper, and each case tells right from wrong."""

import numpy as np
import pytest

from course_lib.check import CheckFailed
from course_lib.check.pipeline import on_ranks, reference
from course_lib.check.pipeline.zero_bubble import ZeroBubbleCheck
from course_lib.gpt.model.decoder import Sizes, layers
from course_lib.gpt.model.stage import Stage

CASES = [(4, 7), (2, 5), (3, 6), (4, 2), (1, 3), (4, 8), (3, 2), (4, 1)]


def orders(n, count, late=lambda rank, n: rank, ahead=lambda rank, n: n - 1 - rank):
    """1F1B's F and B; rank r does the W of a micro-batch after the B that comes `late` B later."""
    found = []
    for rank in range(n):
        first, off = min(ahead(rank, n), count), late(rank, n)
        order = [("F", k) for k in range(first)]
        for k in range(count + off):
            order += [("F", k + first)] * (k + first < count) + [("B", k)] * (k < count) + [("W", k - off)] * (k >= off)
        found.append(order)
    return found


@pytest.fixture
def check():
    return ZeroBubbleCheck(None, show=False)


@pytest.mark.parametrize(("n", "count"), CASES)
def test_zb_h1_is_as_long_as_in_the_paper_and_holds_no_more_than_1f1b(n, count, check):
    begins = check._judge(orders(n, count), list(range(n)), count)
    took = max(own[-1] + 1 for own in begins)
    assert took == reference.h1_ticks(n, count)
    if count >= n:
        assert took == 3 * count + (n - 1) * (1 + 1 - 1)  # section 2, with T_F = T_B = T_W
    assert max(map(reference.most_held, orders(n, count))) == min(n, count)
    below_1f1b = orders(n, count, late=lambda rank, n: 0)
    assert max(own[-1] + 1 for own in reference.ticks(below_1f1b)) >= took


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ("a W right after each B", dict(late=lambda rank, n: 0)),
        (
            "the step takes 25 ticks, and ranks are idle 16% of them; 24 ticks and 12% are possible",
            dict(late=lambda rank, n: max(rank - 1, 0)),
        ),
        ("holds something of 5 micro-batches at once; 1F1B holds 4", dict(late=lambda rank, n: rank + 1)),
        ("holds something of 7 micro-batches", dict(late=lambda rank, n: 7)),
        ("holds something of 7 micro-batches", dict(ahead=lambda rank, n: 7)),
        ("the step takes", dict(ahead=lambda rank, n: max(n - 2 - rank, 0))),
    ],
)
def test_other_orders_are_too_long_or_hold_too_much(said, how, check):
    with pytest.raises(CheckFailed, match=said):
        check._judge(orders(4, 7, **how), [0, 1, 2, 3], 7)


def test_a_rank_that_leaves_its_work_to_the_end_is_named(check):
    made = orders(4, 6)
    made[0] = [work for work in made[0] if work[0] != "W" or work[1] < 3] + [("W", k) for k in (3, 4, 5)]
    with pytest.raises(CheckFailed, match=r"23 ticks.* comes too late: rank 0 does 3 W after its last B, and is idle before"):
        check._judge(made, [0, 1, 2, 3], 6)
    with pytest.raises(CheckFailed, match="put off for too long: here, up to 3 W"):
        check._judge(orders(4, 6, late=lambda rank, n: 3), [0, 1, 2, 3], 6)


def test_work_that_is_missing_or_too_early_is_named(check):
    for order, said in (
        ([("F", 0), ("B", 0)], "not one W for each .* backward_weight.stage, ...., is not recorded"),
        ([("F", 0), ("W", 0), ("B", 0)], "does W of micro-batch 0 before its B"),
        ([("F", 0), ("B", 0), ("W", 0)] * 2, "has done 6 pieces of work; 3 are expected"),
        ([], "not one F for each"),
    ):
        with pytest.raises(CheckFailed, match=said):
            check._complete(order, 2, [1])
    with pytest.raises(CheckFailed, match="the ranks wait for each other"):
        one_by_one = [(kind, k) for k in range(2) for kind in "FBW"]
        check._judge([one_by_one, [("F", 0), ("F", 1), ("B", 0), ("W", 0), ("B", 1), ("W", 1)]], [0, 1], 2)


def test_the_expected_gradient_of_scaled_rows_is_that_of_scaled_rows():
    sizes, random = Sizes(7, 6, 2, 2, 5), np.random.default_rng(0)
    tokens, labels = random.integers(0, 7, (2, 3, 5))
    plain, scaled = (Stage(layers(sizes, dtype=np.float64), 6, np.float64) for _ in "ab")
    products = reference.scaled_products(scaled)
    seen = {}
    for product in products:
        product.factors = random.uniform(0.5, 1.5, 15)
        forward = product.forward

        def noting(x, product=product, forward=forward):
            out = forward(x)
            out.register_hook(lambda grad: seen.update({id(product): (x.data.copy(), grad.copy())}))
            return out

        product.forward = noting
    assert plain.forward(0, tokens, labels) == scaled.forward(0, tokens, labels)
    plain.backward(0, 1.0)
    scaled.backward(0, 1.0)
    matrices = {id(product.weight): product for product in products}
    for (_, p), (_, q) in zip(plain.named_parameters(), scaled.named_parameters(), strict=True):
        if id(q) not in matrices:
            assert np.allclose(p.grad, q.grad, rtol=1e-12, atol=1e-14)
            continue
        product = matrices[id(q)]
        x, grad = (a.reshape(15, -1) for a in seen[id(product)])
        assert np.allclose(p.grad, x.T @ grad, atol=1e-13)
        assert np.allclose(q.grad, (x * product.factors[:, None]).T @ grad, atol=1e-13)
        assert not np.allclose(p.grad, q.grad, rtol=1e-3)


def test_rows_are_scaled_by_factors_that_no_single_number_replaces():
    x = np.ones((2, 4, 3))
    factors = on_ranks.row_factors(1.1, x)
    on_ranks.scale_rows(x, factors)
    assert np.array_equal(x[1, 2], np.full(3, factors[6])) and np.ptp(factors) > 0.5 and (factors > 0).all()
    assert not np.allclose(factors / factors[0], on_ranks.row_factors(1.2, x) / on_ranks.row_factors(1.2, x)[0], rtol=1e-2)


def test_neighbours_meet_where_their_work_falls_on_the_same_tick(check):
    made = orders(3, 4)
    begins = reference.ticks(made)
    meets, gates, numbers = {}, [[] for _ in range(4)], {}
    model = type("Model", (), {"message": 100, "batches": [None] * 4})
    check._set_gates(([2, 0, 1], model), made, begins, (meets, gates, numbers))
    ranks = {2: 0, 0: 1, 1: 2}
    for r, i in ranks.items():
        for j, tick in enumerate(begins[i]):
            assert meets[r][j] == [other for other in (i - 1, i + 1) if other in range(3) and tick in begins[other]]
    assert sum(map(len, meets[2])) > 6  # most of the work
    sent = gates[2][-1][0] - 8 * sum(map(len, meets[2][:-1]))
    assert sent == 4 * 100  # the first rank sends its four activations
