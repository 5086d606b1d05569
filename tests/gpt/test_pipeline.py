"""A pipeline's stages, the picture of their work, and what the simulator expects of this machine."""

import contextlib

import numpy as np
import pytest

from course_lib import cluster, plots, sim
from course_lib.cluster.replies import RanksError
from course_lib.gpt.model.decoder import Sizes, layers
from course_lib.gpt.model.stage import Stage
from course_lib.sim.calibrate import BlockCost, Processor
from course_lib.sim.schedule import schedules

SIZES = Sizes(vocabulary=7, width=8, heads=2, depth=4, length=5)


@contextlib.contextmanager
def two():
    ranks = cluster.start(2)
    try:
        yield ranks
    finally:
        ranks.stop()


def stages(ranks, dtype=np.float64):
    return [Stage(layers(SIZES, ranks, r, seed=3, dtype=dtype), SIZES.width, dtype) for r in range(ranks)]


def through(parts, tokens, labels, k=0):
    """A micro-batch forward and back; the loss."""
    x = tokens
    for part in parts:
        x = part.forward(k, x, labels)
    grad = 1.0
    for part in reversed(parts):
        grad = part.backward(k, grad)
    assert grad is None
    return x


@pytest.mark.parametrize("ranks", [2, 4])
def test_stages_are_the_whole_model(ranks):
    tokens, labels = np.random.default_rng(0).integers(0, 7, (2, 3, 5))
    (whole,), parts = stages(1), stages(ranks)
    assert through(parts, tokens, labels) == pytest.approx(through([whole], tokens, labels), rel=1e-12)
    mine = [p for part in parts for _, p in part.named_parameters()]
    for (name, p), other in zip(whole.named_parameters(), mine, strict=True):
        assert np.array_equal(p.data, other.data) and np.allclose(p.grad, other.grad, rtol=1e-9, atol=1e-12), name


def test_what_a_stage_is_not_meant_for_gets_a_sentence():
    first, last = stages(2)
    tokens = np.zeros((2, 5), int)
    out = first.forward(0, tokens, None)
    for said, call in (
        ("micro-batch 0 has already been through forward", lambda: first.forward(0, tokens, None)),
        ("on the first rank x is the tokens of micro-batch 1", lambda: first.forward(1, out, None)),
        ("the tokens of micro-batch 1, whole numbers; got \\(array", lambda: first.forward(1, (tokens, tokens), None)),
        (r"\(batch, positions, 8\), float64; got an array of shape \(2, 5\)", lambda: last.forward(0, tokens, tokens)),
        (r"got an array of shape \(2, 5, 8\), float32", lambda: last.forward(0, out.astype(np.float32), tokens)),
        ("micro-batch 4 has not been through forward, or has already been through backward; in flight: 0", lambda: first.backward(4, out)),
        (r"must have shape \(2, 5, 8\), like its output; got an array of shape \(2, 5\)", lambda: first.backward(0, tokens)),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    last.forward(0, out, tokens)
    with pytest.raises(ValueError, match="on the last rank grad is a number"):
        last.backward(0, out)
    assert first.order() == "F0" and first.buffer(tokens).shape == (2, 5, 8)
    with pytest.raises(ValueError, match="a pipeline of 3 ranks must divide the model's 4 blocks"):
        stages(3)


def test_a_stage_keeps_nothing_of_a_micro_batch_that_is_done():
    first, last = stages(2)
    tokens = np.zeros((2, 5), int)
    for k in range(3):
        through([first, last], tokens, tokens, k)
    assert not first._in_flight and not last._in_flight
    assert first.order() == "F0 B0 F1 B1 F2 B2"


def test_an_order_in_which_ranks_wait_for_each_other_has_no_times():
    good = [schedules.parse_work("F0 F1 B0 B1"), schedules.parse_work("F0 B0 F1 B1")]
    assert schedules.schedule_times(good, lambda rank, kind: 1.0)[0][-1] == ("B", 1, 5.0, 6.0)
    with pytest.raises(ValueError, match="the ranks wait for each other"):
        schedules.schedule_times([schedules.parse_work("F0 B0 F1 B1"), schedules.parse_work("F0 F1 B0 B1")], lambda rank, kind: 1.0)


def test_the_picture_says_how_long_and_how_much_was_idle():
    work = [[("F", 0, 1.0, 2.0), ("B", 0, 4.0, 6.0)], [("F", 0, 2.0, 3.0), ("B", 0, 3.0, 4.0)]]
    trace = schedules.as_trace([[(kind, k, begin - 1, end - 1) for kind, k, begin, end in each] for each in work], "A step")
    picture = plots.timeline({"measured": trace, "simulated": trace}, "A step")
    assert "measured: 5 s, ranks compute 50% of the time" in repr(picture) and picture.png()


def test_a_processor_does_one_thing_after_the_other():
    link = sim.Link(1e9)
    slow = Processor("", 1e9, ((1e6, 1.0), (0.0, 0.5)), 1e9, 1.0, link, link, link)
    assert slow.compute(2e6, 3e6) == pytest.approx(2e-3 + 3e-3)
    assert slow.compute(1e5, 0) == pytest.approx(2e-4)
    cost = BlockCost(width=8, heads=2, positions=4, samples=3)
    assert cost.flop() == 12 * (24 * 64 + 4 * 4 * 8) and cost.message_bytes() == 4 * 12 * 8
    assert cost.seconds("backward", slow) > cost.seconds("forward", slow) > cost.flop() / 1e9


@pytest.mark.slow
def test_calibration_finds_figures_that_make_sense():
    with two() as ranks:
        machine = sim.calibrate(ranks)
        assert "2 ranks on" in machine.name and machine.domain == 2
        assert 1e8 < machine.flops < 1e13 and 1e8 < machine.memory_bandwidth < 1e13
        assert all(0 < part <= 1 for _, part in machine.efficiency)
        assert [least for least, _ in machine.efficiency] == sorted((least for least, _ in machine.efficiency), reverse=True)
        assert 0 < machine.nvlink.latency < 0.1 and 1e7 < machine.nvlink.bandwidth < 1e13
        alone = sim.calibrate(ranks, 1)
        assert "1 rank on" in alone.name and alone.nvlink.send(1e6) == 0


BOTH_SEND = """
def exchange(me, bytes_):
    import numpy as np
    from course_lib.collectives import Communicator
    comm = Communicator()
    comm.Send(np.zeros(bytes_, np.uint8), dest=1 - me)
    comm.Recv(np.zeros(bytes_, np.uint8), source=1 - me)
"""


def test_two_stages_that_send_to_each_other_are_named():
    with two() as ranks:
        ranks.run(BOTH_SEND)
        ranks.call("exchange", [dict(me=r, bytes_=1000) for r in range(2)])
        with pytest.raises(RanksError) as error:
            ranks.call("exchange", [dict(me=r, bytes_=1 << 20) for r in range(2)])
        text = str(error.value)
        assert "DeadlockError" in text and "rank 0 waits in Send to rank 1" in text and "rank 1 waits in Send to rank 0" in text
