"""Scenes of a step, from traces of real ranks: what the frames say is what the ranks did and sent."""

import sys

import numpy as np
import pytest

from course_lib.cluster import Ranks
from course_lib.plots import experts as routes
from course_lib.plots import moving
from course_lib.plots.moving import ring, sharded
from course_lib.plots.moving.experts import all_to_alls, token_counts
from course_lib.plots.moving.pipeline import schedule
from course_lib.trace.timeline import Trace

MOST_BYTES = 300_000  # of a picture in a notebook's file, in base64
ZIGZAG = [[0, 7], [1, 6], [2, 5], [3, 4]]


@pytest.fixture(scope="module")
def four(functions):
    """Four ranks with the solved exercises of parts 23 to 26."""
    ranks = Ranks(4)
    ranks.run(
        f"import sys; sys.path.insert(0, {str(functions)!r})\nimport numpy as np\nimport transformer_impl as solved\n"
        "from transformer_impl import *\nfrom course_lib.autograd import Tensor\nfrom course_lib.collectives import Communicator\n"
        "from course_lib.gpt.fsdp import profile\nfrom course_lib.gpt.model import Route, Sizes, Stage, layers\n"
        "comm = Communicator()\nrank = comm.Get_rank()"
    )
    yield ranks
    ranks.stop()


def traced(ranks, code):
    with ranks.trace(show=False) as traces:
        ranks.run(code)
    return traces


def check_display(scene, monkeypatch):
    """Check the still picture, its text and its size, with the widget and without."""
    with_widget, _ = scene._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in with_widget
    picture = scene.widget().children[1].value
    assert 'alt="' in picture and len(picture) < MOST_BYTES and 4 / 3 * len(with_widget["image/png"]) < MOST_BYTES
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    data, _ = scene._repr_mimebundle_()
    assert list(data) == ["text/html", "image/png", "text/plain"] and data["text/plain"] == scene.still.text
    shown = [scene.frame(i).text for i in range(scene.frames)]
    title = scene.still.figure.get_suptitle()
    assert sum(text.removeprefix(f"{title}. ") in scene.still.text for text in shown) >= 3, "key frames, with their sentences"
    assert len(set(shown)) == scene.frames and all(scene.frame(i).png()[:4] == b"\x89PNG" for i in (0, scene.frames - 1))


RING = """
seen, original = [], solved.block_attention
def block_attention(q, k, v, *at):
    seen.append(int(k.flat[0]))
    return original(q, k, v, *at)
solved.block_attention = block_attention
mine = np.full((1, 2, 64, 8), rank, np.float32)
"""


def test_keys_and_values_are_where_the_ranks_have_them(four, monkeypatch):
    four.run(RING)
    traces = traced(four, "ring_attention(Tensor(mine), Tensor(mine), Tensor(mine), comm)")
    four.run("solved.block_attention = original")
    held = ring.holders(traces[0])
    assert [list(places) for places in zip(*held, strict=True)] == four.pull("seen")
    assert held[1] == [3, 0, 1, 2]
    nbytes = 2 * 4 * 2 * 64 * 8  # K and V of a rank
    for hop in ring.hops(traces[0]):
        for r in range(4):
            sent = [a for a in hop if a.source == r]
            assert sum(a.nbytes for a in sent) == nbytes and {a.dest for a in sent} == {(r + 1) % 4}
    scene = moving.ring_attention(traces, ZIGZAG, "A ring")
    assert scene.frames == 7
    assert "rank 0 has rank 3's, rank 1 has rank 0's" in scene.frame(2).text and "8 of the 36 visible pairs" in scene.frame(2).text
    assert "rank 3's from 0 to 1" in scene.frame(3).text and "8.19 kB each" in scene.frame(3).text
    check_display(scene, monkeypatch)


def test_a_ring_the_other_way_with_one_message_a_step(four):
    code = """
has, whose = np.full(100, rank), [rank]
for _ in range(3):
    got = np.empty_like(has)
    comm.Sendrecv(has, (rank - 1) % 4, recvbuf=got, source=(rank + 1) % 4)
    has = got
    whose.append(int(has[0]))
"""
    trace = traced(four, code)[0]
    assert [list(places) for places in zip(*ring.holders(trace), strict=True)] == four.pull("whose")
    assert "rank 0's from 0 to 3" in moving.ring_attention(trace, ZIGZAG, "A ring").frame(1).text


def test_what_is_no_forward_pass_is_not_drawn(four):
    backward = traced(four, "q = Tensor(mine, True)\nring_attention(q, q, q, comm).sum().backward()")
    silent = traced(four, "comm.Barrier()")
    for traces, why in ((backward, "without its backward pass"), (silent, "sent nothing"), ([], "got 0 traces")):
        with pytest.raises(ValueError, match=why):
            moving.ring_attention(traces, ZIGZAG, "A ring")
    for scene in (lambda: moving.experts(silent, [], ""), lambda: moving.fully_sharded(silent, [], "")):
        with pytest.raises(ValueError, match=r"moving\.\w+ draws"):
            scene()
    with pytest.raises(ValueError, match="none of ranks 0–3"):
        moving.pipeline({"GPipe": silent}, "")


def test_a_ring_of_one_rank_has_one_frame():
    trace = Trace.from_replies({0: {"began": 0.0, "ended": 1.0, "dropped": 0, "events": []}})
    assert moving.ring_attention(trace, [[0, 1]], "Alone").frames == 1


def test_as_many_tokens_leave_and_return_as_the_routes_say(four, monkeypatch):
    four.run("logits = np.random.default_rng(rank).standard_normal((8, 8)) + np.arange(8) / 6")
    with four.trace(show=False) as traces:
        found = four.call(routes.round_trip)
    four.run("way = route(Tensor(logits), 1, 2)\nkept = np.bincount(way.expert[way.place >= 0], minlength=8)")
    counts = token_counts(found)
    assert np.array_equal(counts, four.pull("kept")) and 0 < counts.sum() < 32
    assert [[e.nbytes for e in events] for events in all_to_alls(traces[0])] == [[8 * 2 * 8] * 4] * 2  # slots of one float64
    scene = moving.experts(traces, found, "Tokens")
    assert scene.frames == 5 and all(f"{n} to expert {e}" in scene.frame(1).text for e, n in enumerate(counts.sum(axis=0)))
    assert all(f"{n} of 8 on rank {r}" in scene.frame(4).text for r, n in enumerate(counts.sum(axis=1)))
    assert f"{32 - counts.sum()} found no slot" in scene.frame(4).text and "128 B" in scene.frame(3).text
    check_display(scene, monkeypatch)


PIPELINE = """
sizes = Sizes(vocabulary=16, width=8, heads=2, depth=4, length=4)
batches = [(t, np.roll(t, -1, axis=1)) for t in np.random.default_rng(0).integers(0, 16, (5, 2, 4))]
class Noting(Stage):
    def forward(self, k, *rest):
        out = super().forward(k, *rest)
        held.append(sorted(self._in_flight))
        return out
    def backward(self, k, grad):
        held.append(sorted(self._in_flight))
        return super().backward(k, grad)
held, stage = [], Noting(layers(sizes, 4, rank), sizes.width)
"""


@pytest.mark.parametrize(("function", "most"), [("gpipe_step", [5] * 4), ("one_forward_one_backward_step", [4, 3, 2, 1])])
def test_stages_work_and_hold_what_the_frames_say(four, function, most):
    four.run(PIPELINE)
    traces = traced(four, f"{function}(stage, batches, comm)\norder = stage.order()")
    plan = schedule(traces[0])
    assert [" ".join(f"{'FB'[w.kind == 'backward']}{w.micro_batch}" for w in works) for works in plan] == four.pull("order")
    assert [[list(w.held) for w in works] for works in plan] == four.pull("held")
    assert [max(len(w.held) for w in works) for works in plan] == most
    for r, works in enumerate(plan):
        steps = [w.step for w in works]
        assert steps == sorted(set(steps))
        for w in works:
            source = r + (1 if w.kind == "backward" else -1)
            assert (w.source, w.nbytes) == ((source, 2 * 4 * 8 * 4) if 0 <= source < 4 else (None, 0))
            if w.source is not None:
                assert w.step > next(o.step for o in plan[source] if o[:2] == w[:2]), "the input comes before"
    assert 1 + max(w.step for works in plan for w in works) == 2 * (5 + 4 - 1), "both schedules take as many steps"


def test_both_schedules_move_side_by_side(four, monkeypatch):
    runs = {}
    for name, function in {"GPipe": "gpipe_step", "1F1B": "one_forward_one_backward_step"}.items():
        four.run(PIPELINE)
        runs[name] = traced(four, f"{function}(stage, batches, comm)")
    scene = moving.pipeline(runs, "A step")
    assert scene.frames == 16 and "GPipe: forward of 4 on rank 0, 3 on rank 1" in scene.frame(4).text
    assert "1F1B: backward of 0 on rank 3; idle: ranks 0–2; held: 4, 3, 2, 1." in scene.frame(4).text
    check_display(scene, monkeypatch)


def test_blocks_are_gathered_freed_and_reduced_as_the_frames_say(four, monkeypatch):
    traces = traced(four, "held = profile.held_in_step(FullyShardedDataParallel, comm)")
    held = four.pull("held")
    moments, names = held[0]
    plan = sharded.turns(traces[0])
    assert [(t.back, t.block) for t in plan] == [(False, i) for i in range(4)] + [(True, i) for i in (3, 2, 1, 0)]
    assert names == ["Embed", "Block", "Block", "Head"]
    four.run("sizes = [4 * FlatShard(list(b.parameters()), comm).flat.length for b in layers(profile.SMALL)]")
    sizes = four.pull("sizes")[0]
    before = [False] * 4
    for i, turn in enumerate(plan):
        gathered, _, freed = moments[3 * i : 3 * i + 3]
        new = [sizes[b] for b in range(4) if gathered[3][b] and not before[b]]
        for r in range(4):
            assert sorted(e.nbytes for e in turn.gathers[r]) == sorted(new), "what is on its way is what the trace gathers"
            assert [e.nbytes for e in turn.reduces[r]] == ([sizes[turn.block]] if turn.back else [])
            if i and sum(new) > 100_000:
                rise = held[r][0][3 * i][4] - held[r][0][3 * i - 1][4]
                assert rise == pytest.approx(sum(new), rel=0.2), "memory goes up by what is gathered"
        assert not freed[3][turn.block]
        before = freed[3]
    scene = moving.fully_sharded(traces, held, "A step")
    assert scene.frames == 24 and "Embed (0) is whole on every rank, Block (1) is on its way" in scene.frame(0).text
    assert "a reduce-scatter of 788 kB" in scene.frame(17).text
    check_display(scene, monkeypatch)
    with pytest.raises(ValueError, match="not of the same step"):
        moving.fully_sharded(traces, [(mine[:-3], names) for mine, names in held], "A step")
