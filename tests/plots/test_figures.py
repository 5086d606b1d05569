"""Figures of the values that ranks hold and exchange."""

import numpy as np

from course_lib import plots


def test_figures_are_drawn_from_what_ranks_hold():
    x = np.arange(40).reshape(10, 4)
    picture = plots.holdings(x, [x[:5], x[5:]], "Rows")
    assert "rank 0 rows 0–4 of all columns; rank 1 rows 5–9" in picture.text
    data, size = picture._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG") and size["image/png"]["width"] > 100
    guess = plots.exchange([np.arange(2)] * 3, [np.arange(2)] * 3, "Same.", (1, [0, 5]))
    assert "for rank 1, 1 of 2 values are right" in guess.text
    assert "0 of 2" in plots.exchange([np.arange(2)] * 3, [np.arange(2)] * 3, "Same.", (1, "words")).text
    assert "15 kB" in plots.traffic([[("Allreduce", (0, 1), 1, 15000)]]).text
    assert len({plots.color(r) for r in range(8)}) == 8


def test_magnitudes_say_what_float16_cannot_hold():
    there = {"some": np.array([0.0, 1.0, -(2.0**-20), 2.0**-30, 1e6]), "none": np.zeros(3)}
    picture = plots.magnitudes(there, "Numbers")
    assert picture.text == (
        "Numbers: some: 25 % are 0 in float16, 25 % have fewer bits, 25 % are infinite; "
        "none: 0 % are 0 in float16, 0 % have fewer bits, 0 % are infinite"
    )
    assert picture.png().startswith(b"\x89PNG")
