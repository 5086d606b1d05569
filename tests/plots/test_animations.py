"""Figures that move: the ring's steps are those of real ranks, and where nothing can move a still picture says the same."""

import sys

import numpy as np
import pytest

from course_lib import plots
from course_lib.collectives import ring
from course_lib.plots import animation
from course_lib.sim import H100, run


def test_a_ring_of_real_ranks_adds_up_and_then_goes_round(eight):
    arrays = [np.arange(1.0, 9) * 10 ** (r % 3) for r in range(8)]
    held = eight.call(ring.allreduce, [dict(mine=array) for array in arrays])
    counts = eight.call(ring.allreduce, dict(mine=np.ones(8)))
    for r in range(8):
        assert held[r].shape == (15, 8) and np.array_equal(held[r][0], arrays[r]) and np.array_equal(held[r][-1], sum(arrays))
        assert counts[r][7].max() == 8 and np.count_nonzero(counts[r][7] == 8) == 1
        for step in range(1, 15):
            (changed,) = np.flatnonzero(counts[r][step] != counts[r][step - 1])
            assert changed == animation._received_piece(r, step, 8), "the frame marks what came"
    shown = plots.ring(held, counts, "A ring")
    assert shown.frames == 15 and "step 14 of 14: 64 of 64 pieces are complete sums" in shown.frame(14).text
    assert "after 7 steps each rank has one complete sum, and after 14 all of them" in repr(shown)


async def loop(model):
    weight, state = model.load_weights(0)
    grads = None
    for sample in range(4):
        before = model.get_input_activation([sample])
        after = model.forward(0, before, weight)
        grad, _ = model.backward(0, before, model.loss(after), weight)
        grads = grad if grads is None else grads + grad
    model.set_final_weight(0, model.update(0, grads, weight, state)[0])


def test_a_timeline_grows_to_the_whole_one():
    result = run(loop, world_size=1, num_layers=1, global_batch_size=4, hardware=H100)
    grows, whole = result.play("A step"), result.draw("A step")
    assert grows.frames >= 9 and grows.still.text == whole.text
    sizes = [len(grows.frame(i).figure.axes[0].texts) for i in range(grows.frames)]
    assert sizes == sorted(sizes) and sizes[0] == 0 and sizes[-1] == len(whole.figure.axes[0].texts)


def test_what_is_shown_moves_in_a_notebook_and_stands_still_on_a_page(monkeypatch):
    picture = plots.bars({"a": 1}, "Bars", "bytes")
    drawn = []
    shown = plots.Animation(lambda i: drawn.append(i) or picture, 3, picture)
    data, _ = shown._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data and data["image/png"][:4] == b"\x89PNG"
    assert data["text/plain"] == repr(shown) == picture.text and drawn == [0], "frames are drawn when they are to be seen"
    box = shown.widget()
    slider = box.children[0].children[1]
    slider.value = 2
    slider.value = 0
    assert drawn == [0, 2] and box.children[1].value == picture.html()
    monkeypatch.setenv("COURSE_FIGURES", "slides")
    on_slide = shown.widget().children[1].value
    assert 'src="data:image/png;base64,' in on_slide and f'alt="{picture.text}"' in on_slide, "a frame has its text"
    monkeypatch.delenv("COURSE_FIGURES")
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    data, _ = shown._repr_mimebundle_()
    assert list(data) == ["text/html", "image/png", "text/plain"]


@pytest.mark.parametrize("n", [1, 2])
def test_small_rings(n):
    states = [np.zeros((2 * n - 1, n)) for _ in range(n)]
    assert plots.ring(states, states, "A ring").frame(0).png()[:4] == b"\x89PNG"
