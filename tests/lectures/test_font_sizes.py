"""The type of figures on slides: 18 pt and more where 1920 by 1080 pixels fill the screen."""

import numpy as np
import pytest
from matplotlib.text import Text

from course_lib import placement, plots
from course_lib.placement import replicated, sharded
from course_lib.plots import alpha_beta, figures
from course_lib.sim import H100, run
from course_lib.sim.schedule import schedules
from course_lib.trace.timeline import Trace


async def data_parallel(model):
    """A training step on one sample a rank."""
    weight, state = model.load_weights(0)
    before = model.get_input_activation([model.rank])
    after = model.forward(0, before, weight)
    grad, _ = model.backward(0, before, model.loss(after), weight)
    model.set_final_weight(0, model.update(0, await model.all_reduce(grad, 0), weight, state)[0])


def timeline(ranks):
    result = run(data_parallel, world_size=ranks, num_layers=1, global_batch_size=ranks, hardware=H100)
    return result.draw("A title that is not short at all")


def memory_of(values):
    return plots.bars(values, "Most memory of a rank, for some sizes of a micro-batch", "memory")


ROOFS = ("4 ranks", "16 ranks", "64 ranks")


def steps():
    events = [("span", "forward", 0.0, 1.0), ("span", "device", 1.0, 3.0), ("started collective", "Allreduce", 1.0, 3.5, (0, 1), 0)]
    events.append(("wait", "Allreduce", 3.0, 3.5, (0, 1), 0, 0, -1, -1, "collective"))
    one = Trace.from_replies({r: {"began": 0.0, "ended": 4.0, "dropped": 0, "events": events} for r in (0, 1)})
    ways = ("one per parameter", "buckets", "buckets, overlapped", "in shared memory")
    return plots.timeline(dict.fromkeys(ways, one), "A step on two ranks: four layers of 1024 units, 16 samples per rank")


SERVED = dict(  # of 40 texts that follow each other
    arrived=[0.1 * k for k in range(40)],
    ended=[0.1 * k + 0.3 for k in range(40)],
    spans=[(k, kind, 0.1 * k + at, 0.1 * k + at + 0.1) for k in range(40) for kind, at in (("prefill", 0.1), ("decode", 0.2))],
    owners=np.full((40, 24), -1),
    times=[0.1 * k for k in range(40)],
    rate=734.0,
)

PICTURES = {
    "legend": lambda: plots.legend(),
    "exchange": lambda: plots.exchange([np.arange(3) + r for r in range(8)], [np.arange(3)] * 8, "Before and after, on eight ranks"),
    "wide exchange": lambda: plots.exchange([np.arange(2)] * 8, [np.arange(16) + 100] * 8, "Sixteen numbers on each rank"),
    "a row of groups": lambda: plots.groups({"mp": [tuple(range(8))], "dp": [(r,) for r in range(8)]}, "mp_size 8"),
    "a column of groups": lambda: plots.groups({"mp": [(r,) for r in range(8)], "dp": [tuple(range(8))]}, "mp_size 1"),
    "holdings": lambda: plots.holdings(np.arange(96).reshape(8, 12), np.split(np.arange(96).reshape(8, 12), 8), "Rows on eight ranks"),
    "bars": lambda: memory_of({f"{n} micro-batches of {256 // n}": 2.0**30 * n for n in (1, 2, 4, 8)}),
    "orders": lambda: schedules.draw({"GPipe": ["F0 F1 B0 B1"] * 4, "1F1B": ["F0 B0 F1 B1"] * 4}),
    "steps": steps,
    "times against size": lambda: alpha_beta.draw([8.0, 8e6], [3e-5, 8e-3], 3e-5, 1e9, "Time of an all-reduce, and a fit", (1e6, 2e-3)),
    "roofs": lambda: alpha_beta.draw_roofline({f"{n} ranks": n for n in (4, 16, 64)}, [1, 4], {name: [9, 50] for name in ROOFS}, "Roofs"),
    "drift": lambda: plots.drift({"your f": dict(losses=[3, 1], apart=[0, 0.3])}, "Two blocks trained with f, and with a broken f"),
    "losses beside": lambda: plots.losses_beside({n: [6.0, 3.0] for n in ("one rank", *"ABCDEF")}, "one rank", "Six runs with a bug"),
    "memory over time": lambda: plots.memory_over_time(
        {n: dict(seconds=[0, 0.01, 0.02], held=[0, 2.8e7, 0]) for n in ("nothing", "each layer", "chosen")}, "What rank 0 keeps", 1.5e7
    ),
    "magnitudes": lambda: plots.magnitudes({n: 10.0 ** np.arange(-9, 3) for n in ("not scaled", "times 2^27")}, "What float16 holds"),
    "membership": lambda: plots.membership(
        [[(k, (0, 1, 2, 3), k + 1, 2.0 / (k + 1), 0.1 * k) for k in range(30)] for _ in range(4)],
        "Who was in each outer step, and the loss",
    ),
    "roofline": lambda: plots.roofline(
        dict(peak=9e10, bandwidth=4e10, tokens=[1, 16, 256], intensity=[0.5, 8, 128], rate=[2e10, 4e10, 7e10]), "Matrix products"
    ),
    "serving": lambda: plots.serving({"static": SERVED, "continuous": SERVED}, "40 texts and 24 blocks, on a simulated clock"),
    "operators": lambda: plots.operators(placement.OPERATORS[:2], "What f and g do", ranks=4),
    "all operators": lambda: plots.operators(),
    "lines of a layer": lambda: plots.operators([*placement.LAYER_OPERATORS.values()][:2], "Two lines", ranks=4, rows=False, ask="forward"),
    "products": lambda: plots.products({"case 1": (sharded(0), replicated), "case 2": (sharded(1), replicated)}, "C = A B on four ranks"),
    "three placements": lambda: plots.kinds({"sharded": {"mp": sharded(1)}, "replicated": {"mp": replicated}}, {"mp": 4}, "A matrix"),
    "kinds": lambda: plots.kinds({"qkv.weight": {"dp": replicated, "tp": sharded(1)}}, {"dp": 2, "tp": 4}, "Kinds"),
    "four ranks": lambda: timeline(4),
    "sixteen ranks": lambda: timeline(16),
    "sixty-four ranks": lambda: timeline(64),
}


def smallest(picture):
    """The smallest type of a picture, in pixels, on a slide of 1920 by 1080 that gives it 0.58 of its height."""
    data = picture.png(dpi=100)
    width, height = (int.from_bytes(data[i : i + 4], "big") / 100 for i in (16, 20))
    scale = min(1690 * picture.share / width, 0.58 * 1080 / height) / 72
    return scale * min(text.get_fontsize() for text in picture.figure.findobj(Text) if text.get_text().strip() and text.get_visible())


@pytest.mark.filterwarnings("error")  # matplotlib's "not applied because axes sizes collapsed to zero" would be on the slide
@pytest.mark.parametrize(("name", "share"), [*((name, 1.0) for name in PICTURES), ("bars", 0.5), ("a row of groups", 0.5)])
def test_the_last_row_reads_a_figure(monkeypatch, name, share):
    monkeypatch.setenv(figures.FIGURE_STYLE_ENV, "slides")
    picture = PICTURES[name]()
    picture.share = share
    assert smallest(picture) >= 24


def test_elsewhere_a_figure_stays_as_it_is(monkeypatch):
    monkeypatch.delenv(figures.FIGURE_STYLE_ENV, raising=False)
    assert {text.get_fontsize() for text in PICTURES["exchange"]().figure.findobj(Text) if text.get_text()} <= {9, 10, 11, 12}
