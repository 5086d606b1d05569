"""Times of an all-reduce: what is fitted to them, how they are measured, and what is drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.plots import alpha_beta

SIZES = [8 * 4**i for i in range(11)]
LATENCIES = st.floats(1e-7, 1e-2)  # seconds
BANDWIDTHS = st.floats(1e7, 1e11)  # bytes per second


@given(alpha=LATENCIES, beta=BANDWIDTHS)
def test_exact_times_give_back_both_numbers(alpha, beta):
    found = alpha_beta.fit(SIZES, [alpha + n / beta for n in SIZES])
    assert found == pytest.approx((alpha, beta), rel=1e-6)


@given(alpha=LATENCIES, beta=BANDWIDTHS, noise=st.lists(st.floats(-0.2, 0.2), min_size=len(SIZES), max_size=len(SIZES)))
def test_noisy_times_give_times_that_are_about_as_noisy(alpha, beta, noise):
    exact = np.array([alpha + n / beta for n in SIZES])
    a, b = alpha_beta.fit(SIZES, exact * (1 + np.array(noise)))
    assert a >= 0 and b > 0
    # Least squares moves the fitted curve by no more than the errors' length.
    assert np.all(np.abs(a + np.array(SIZES) / b - exact) <= 0.25 * np.sqrt(len(SIZES)) * exact * 1.25)


@given(alpha=LATENCIES, beta=BANDWIDTHS, which=st.integers(0, len(SIZES) - 1), factor=st.floats(10, 1e4))
def test_one_size_that_was_disturbed_hardly_matters(alpha, beta, which, factor):
    times = np.array([alpha + n / beta for n in SIZES])
    times[which] *= factor
    a, b = alpha_beta.fit(SIZES, times)
    left = np.delete(np.array(SIZES), which)
    assert np.median(np.abs((a + left / b) / (alpha + left / beta) - 1)) < 0.2


@given(times=st.lists(st.floats(1e-7, 10.0), min_size=2, max_size=9))
def test_any_times_have_a_fit_that_is_not_negative(times):
    alpha, beta = alpha_beta.fit(SIZES[: len(times)], times)
    assert alpha >= 0 and beta > 0 and alpha + SIZES[0] / beta > 0


def test_times_that_do_not_grow_have_no_bandwidth():
    assert alpha_beta.fit([8, 80], [2e-6, 1e-6])[1] == np.inf
    assert alpha_beta.fit([8, 800], [1e-6, 1e-3])[0] == 0.0


@pytest.mark.parametrize(("sizes", "seconds"), [([8], [1e-6]), ([8, 8], [1e-6, 1e-6]), ([8, 80], [1e-6]), ([8, 80], [0.0, 1e-6])])
def test_two_numbers_need_two_times(sizes, seconds):
    with pytest.raises(ValueError, match="fit: "):
        alpha_beta.fit(sizes, seconds)


class Alone:
    """The communicator of a single rank, whose all-reduces take longer the more they move."""

    def __init__(self):
        self.asked = []

    def Barrier(self):
        self.asked.append("Barrier")

    def Allreduce(self, before, after):
        self.asked.append(before.nbytes)
        after[:] = before

    def Allgather(self, before, after):
        after[0] = before

    def Get_size(self):
        return 1


def test_each_size_is_measured_in_turn_after_a_barrier():
    comm = Alone()
    times = alpha_beta.measure(comm, [8, 804, 80_000], repeats=3)
    assert len(times) == 3 and min(times) > 0
    assert comm.asked[:-1:2] == ["Barrier"] * (len(comm.asked) // 2)
    rounds = 3 + alpha_beta.WARM_UP
    assert comm.asked[1::2] == [8, 8, 800, 800, 80_000, 80_000] * rounds


def test_another_exchange_is_measured_in_the_same_way():
    comm, called = Alone(), []
    alpha_beta.measure(comm, [80], repeats=1, call=lambda before, after: called.append((before.nbytes, after.nbytes)))
    assert called == [(80, 80)] * 2 * (1 + alpha_beta.WARM_UP) and 80 not in comm.asked


def test_a_comparison_draws_what_was_measured_and_the_messages_of_the_model():
    picture = alpha_beta.compare([8, 800], {"ring": [3e-5, 4e-5], "MPI": [1e-5, 2e-5]}, "Race", 1e-5, 1e9, {"ring": (6, 0.25)})
    assert picture.text == "Race: ring 30 µs for 8 B, 40 µs for 800 B; MPI 10 µs for 8 B, 20 µs for 800 B."
    lines = {line.get_label(): line.get_data() for line in picture.figure.axes[0].lines}
    sizes, seconds = lines["ring, model: messages only"]
    assert np.allclose(seconds, 6 * (1e-5 + sizes / 4 / 1e9)) and len(lines) == 3


def test_the_figure_says_what_was_found():
    times = [1e-5 + n / 1e9 for n in SIZES]
    text = alpha_beta.draw(SIZES, times, 1e-5, 1e9, "Times", (1_000_000, 2e-3)).text
    assert text == "Times: alpha 10 µs, beta 1 GB/s; 1 MB predicted 1 ms, measured 2 ms"
    assert "infinite" in alpha_beta.draw(SIZES, [1e-5] * 11, 1e-5, np.inf, "Times").text


def test_a_roof_bends_where_computing_and_communicating_take_equally_long():
    picture = alpha_beta.draw_roofline({"4 ranks": 2.0, "16 ranks": 16.0}, [1, 4], {"4 ranks": [30, 60], "16 ranks": [5, 20]}, "Roofs", 90)
    assert picture.text == "Roofs: 4 ranks: ridge at 2.0 samples, reached 60%; 16 ranks: ridge at 16.0 samples, reached 20%"
    roofs = [line for line in picture.figure.axes[0].lines if line.get_label().endswith("roof")]
    for line, ridge in zip(roofs, (2.0, 16.0), strict=True):
        x, y = line.get_data()
        assert np.allclose(y, 90 * np.minimum(1, x / ridge))
