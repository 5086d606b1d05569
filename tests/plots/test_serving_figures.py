"""Part 34's figures: what they say in words, and what is in their panels."""

import numpy as np

from course_lib import plots

RUN = {
    "arrived": [0.0, 0.1],
    "first": [0.2, 0.4],
    "ended": [0.4, 0.4],
    "spans": [(0, "prefill", 0.0, 0.2), (0, "decode", 0.2, 0.4), (1, "prefill", 0.2, 0.4)],
    "rate": 7.5,
    "times": np.array([0.0, 0.2]),
    "owners": np.array([[0, 0, -1, -1], [0, -2, 1, -1]]),
}


def test_a_run_is_told_by_its_rate_and_by_the_blocks_whose_text_goes_on():
    picture = plots.serving({"static": RUN, "continuous": RUN | {"rate": 9.0}}, "Two runs")
    assert "static: 8 tokens a second, on average 50% of the blocks have a text that goes on" in picture.text
    above, other, below, _ = picture.figure.axes
    assert above.get_title() == "static: 8 tokens a second" and other.get_title() == "continuous: 9 tokens a second"
    assert below.get_title() == "50% of the blocks have a text that goes on" and below.get_xlabel() == "seconds"


def test_a_run_without_decode_can_be_drawn():
    only = RUN | {"spans": [span for span in RUN["spans"] if span[1] == "prefill"]}
    assert "50%" in plots.serving({"static": only}, "One run").text


def test_a_roofline_has_a_point_for_each_number_of_tokens():
    found = {"peak": 4e10, "bandwidth": 1e10, "tokens": [1, 64], "intensity": [0.5, 32.0], "rate": [4e9, 3e10]}
    picture = plots.roofline(found, "Products")
    assert picture.text == "Products: 1 tokens: 4 Gflop/s, 64 tokens: 30 Gflop/s; possible are 40 Gflop/s and 10 GB/s"
    (axes,) = picture.figure.axes
    roof = axes.lines[0]
    assert max(roof.get_ydata()) == 40 and np.interp(2, roof.get_xdata(), roof.get_ydata()) < 21
