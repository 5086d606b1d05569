"""Language models on clusters: formulas that others have published, schedules, the search, files and the command."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from course_lib.sim import __main__ as command
from course_lib.sim.core.hardware import GIB, Link
from course_lib.sim.llm import pictures
from course_lib.sim.llm.analytic import estimate
from course_lib.sim.llm.cluster import A100_DEVICE, H100_DEVICE, Cluster
from course_lib.sim.llm.configuration import Configuration, PlanError, check_configuration
from course_lib.sim.llm.costs.activations import saved_activations
from course_lib.sim.llm.costs.layer import layer_cost
from course_lib.sim.llm.costs.schedule import work_order
from course_lib.sim.llm.costs.stage import StageCosts
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.measured import activations, comparison, fit, rows
from course_lib.sim.llm.transformer import GPT_175B, MODEL_PRESETS, Transformer
from course_lib.sim.plan import report, toml_config
from course_lib.sim.plan.search import best, configurations
from course_lib.trace.timeline import COMPUTING

SMALL = Transformer("small", 8, 1024, 16, 512, 1000, batch=32)
FREE = Link(float("inf"))


def free(gpus, **more):
    """A cluster whose links take no time."""
    device = replace(A100_DEVICE, launch=0.0)
    return Cluster(device, gpus, inside=FREE, network=FREE, **{"overhead": 0.0, "spread": 0.0} | more)


@pytest.mark.parametrize("model", [MODEL_PRESETS[name] for name in ("22b", "175b", "530b", "1t")], ids=lambda model: model.name)
@pytest.mark.parametrize("t", [1, 8])
def test_activations_of_a_layer_are_those_of_the_published_formulas(model, t):
    a = 5 * model.heads * model.sequence / model.hidden
    want = {(False, "none"): 10 + 24 / t + a / t, (True, "none"): (34 + a) / t, (False, "selective"): 10 + 24 / t}
    want |= {(True, "selective"): 34 / t, (False, "full"): 2}
    for (sequence, recompute), units in want.items():
        found = sum(nbytes for _, nbytes in saved_activations(model, t, sequence, recompute)) / model.hidden
        assert found == pytest.approx(units) == pytest.approx(activations.activation_formula(model, t, sequence, recompute))


def test_flop_are_those_of_the_published_formula():
    for m in (row.model for row in rows.MEASURED if not row.model.fused):
        layers, h, s, v = m.layers, m.hidden, m.sequence, m.vocabulary
        assert m.flop() == pytest.approx(72 * m.batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * h * layers)))


def test_published_measurements_are_met():
    found = comparison.times()
    held = [row for row in found if not row.fitted]
    assert len(held) == len(found) - 4 == 35
    for near, row in zip(comparison.times(closed=True), found, strict=True):
        assert near.ours == pytest.approx(row.ours, rel=0.03), row.name
    mean, worst = comparison.errors(found)
    assert mean <= 0.05 and worst <= 0.12 and abs(comparison.bias(found)) <= 0.02
    for source in rows.SOURCES:
        some = [row for row in found if row.source == source]
        assert comparison.errors(some)[0] <= 0.06, source
    for device in fit.DEVICES:
        some = [row for row in rows.MEASURED if row.device == device]
        assert all(row.configuration.gpus == 8 for row in some if row.fitted)
        assert fit.fit(some) == pytest.approx(device.matrix, abs=5e-4)
    unseen = comparison.times(rows.UNSEEN)
    assert not any(row.fitted for row in unseen) and comparison.errors(unseen)[0] <= 0.08
    _, worst = comparison.errors(activations.activations())
    assert worst <= 0.011


def test_the_command_compares_and_draws(tmp_path, capsys, monkeypatch):
    few = [row for row in rows.MEASURED if row.configuration.pipeline < 17]
    monkeypatch.setattr(rows, "MEASURED", few)
    monkeypatch.setattr(comparison, "MEASURED", few)
    monkeypatch.setattr(fit, "MEASURED", few)
    assert command.main(["validate", "--out", str(tmp_path / "errors.png")]) == 0
    said = capsys.readouterr().out
    for words in ("All rows that are not fitted", "Shown and not counted", "Settings that papers leave open", *fit.ASSUMED, *fit.EFFECTS):
        assert words in said
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")


def test_measured_seconds_are_those_of_the_published_rates():
    """Narayanan et al., 2021, table 1: the aggregate rates in its last column are counted from the same seconds."""
    total = {"1.7B": 4.4, "18.4B": 34.6, "76.1B": 143.8, "310.1B": 297.4, "1008.0B": 502.0}
    for row in (row for row in rows.MEASURED if row.source == rows.NARAYANAN):
        name = row.model.name
        assert row.model.parameters() == pytest.approx(float(name[:-1]) * 1e9, rel=0.06)
        if name in total:  # with recomputation: a forward more
            again = row.model.flop() * 4 / 3 - 2 * row.model.batch * row.model.sequence * row.model.hidden * row.model.vocabulary
            assert again / row.seconds / 1e15 == pytest.approx(total[name], rel=0.02)
    long = rows.MEASURED[26]
    assert long.model.sequence == 131072 and long.model.flop() / long.seconds / 16384 == pytest.approx(380e12)


def test_what_is_assumed_is_fitted_anew_with_another_figure():
    some = rows.MEASURED[:4]  # of two models: the larger ones take a while
    found = fit.fitted_anew(fit.of_device(stream=0.9 * A100_DEVICE.stream), some)
    slower = [replace(row, device=replace(row.device, stream=0.9 * row.device.stream)) for row in some]
    matrix = fit.fit(slower)
    assert matrix > A100_DEVICE.matrix, "what streams take longer, matrix products make up for"
    want = comparison.times([replace(row, device=replace(row.device, matrix=matrix)) for row in slower], closed=True)
    assert found == want and sum(row.error for row in found[:2]) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("name", [*fit.ASSUMED, *list(fit.EFFECTS)[1:]])
def test_every_assumption_and_effect_changes_some_row(name):
    change = (fit.ASSUMED | fit.EFFECTS)[name]
    small = [row for row in rows.MEASURED if row.configuration.pipeline < 10]
    before, after = comparison.times(small), comparison.times([change(row) for row in small])
    assert any(abs(a.ours / b.ours - 1) > 1e-4 for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("ranks", "chunks", "micro_batches"), [(1, 1, 3), (4, 1, 2), (4, 1, 9), (2, 3, 4), (4, 2, 8), (3, 4, 9), (4, 2, 4)]
)
def test_every_rank_does_all_its_work_once_and_nobody_waits_endlessly(ranks, chunks, micro_batches):
    for rank in range(ranks):
        work = work_order(rank, ranks, chunks, micro_batches)
        assert sorted(work) == sorted((f, c, k) for f in (True, False) for c in range(chunks) for k in range(micro_batches))
        for chunk in range(chunks):
            for k in range(micro_batches):
                assert work.index((True, chunk, k)) < work.index((False, chunk, k))
    model = replace(SMALL, layers=ranks * chunks, batch=micro_batches)
    step = simulate(model, free(ranks), Configuration(pipeline=ranks, interleave=chunks))
    assert len([e for e in step.events if e.kind in ("forward", "backward")]) == 2 * ranks * chunks * micro_batches
    spans = {}
    for e in step.events:
        if e.kind in ("forward", "backward"):
            spans[e.kind, e.chunk * ranks + e.rank, e.micro_batch] = e
    for (kind, stage, k), e in spans.items():
        before = spans.get((kind, stage - 1 if kind == "forward" else stage + 1, k))
        assert before is None or before.end <= e.start + 1e-12


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_bubbles_are_those_of_the_closed_form_where_stages_are_equal(chunks):
    p, m = 4, 16
    model = replace(SMALL, layers=16, vocabulary=1, batch=m)
    step = simulate(model, free(p), Configuration(pipeline=p, interleave=chunks))
    costs = StageCosts(model, free(p), Configuration(pipeline=p, interleave=chunks))
    one = layer_cost(model, free(p).device, FREE, Configuration())
    busy = m * 16 / p * (one.forward + one.backward)
    work = max(e.end for e in step.events if e.kind == "backward")
    assert work == pytest.approx(busy * (1 + (p - 1) / (chunks * m)), rel=0.02)
    assert step.seconds == pytest.approx(work + costs.update(0), rel=0.02)


@pytest.mark.parametrize(("chunks", "share"), [(1, 1.0), (2, 1 + 3 / 8), (4, 1 + 3 / 16)])
def test_memory_of_the_first_stage_is_that_of_the_closed_form(chunks, share):
    """Korthikanti et al., 2022, section 4.2.3: all layers' worth with 1F1B, and (p - 1) / (p v) more where it is interleaved."""
    model = replace(SMALL, layers=16, batch=16, dropout=False)
    step = simulate(model, free(4), Configuration(pipeline=4, interleave=chunks))
    whole = 16 * model.sequence * sum(nbytes for _, nbytes in saved_activations(model))
    assert step.peaks[0] - sum(step.state[0].values()) == pytest.approx(whole * share)


def test_what_is_recomputed_costs_time_and_saves_memory():
    plain, selective, full = (simulate(SMALL, free(1), Configuration(recompute=r)) for r in ("none", "selective", "full"))
    assert plain.seconds < selective.seconds < full.seconds
    assert plain.peak > selective.peak > full.peak
    shared = simulate(SMALL, free(4), Configuration(data=4, sharded_optimizer=True))
    assert shared.state[0]["optimizer state"] == plain.state[0]["optimizer state"] / 4
    assert plain.state[0]["weights"] + plain.state[0]["gradients"] + plain.state[0]["optimizer state"] == 18 * SMALL.parameters()


def test_gradients_travel_while_the_rest_goes_backward():
    place = Cluster(A100_DEVICE, 8, node=1, network=Link(5e9))
    step = simulate(SMALL, place, Configuration(pipeline=2, data=4, interleave=4))
    reduced = [e for e in step.events if e.kind == "gradients" and e.rank == 0 and e.chunk >= 0]
    last = max(e.end for e in step.events if e.kind == "backward" and e.rank == 0)
    assert len(reduced) == 4 and reduced[0].start < last, "the first chunk's are on their way before the last one is done"
    assert all(a.end <= b.start for a, b in itertools.pairwise(reduced))


def slow(device, times):
    """Its network, so many times slower."""
    return replace(device.network, bandwidth=device.network.bandwidth / times)


WIDE = Transformer("a large vocabulary", 24, 2048, 16, 2048, 128256, 64)
NEAR = {
    "22b": (replace(MODEL_PRESETS["22b"], batch=64), Cluster(A100_DEVICE, 64)),
    "a slow network": (replace(MODEL_PRESETS["22b"], batch=64), Cluster(A100_DEVICE, 64, network=slow(A100_DEVICE, 4))),
    "a large vocabulary": (WIDE, Cluster(A100_DEVICE, 16)),
    "odd sizes": (replace(WIDE, layers=48, batch=96, fused=True, dropout=False), Cluster(H100_DEVICE, 24, network=slow(H100_DEVICE, 4))),
}


@pytest.mark.parametrize("case", NEAR)
def test_the_closed_form_is_near_the_simulation(case):
    model, place = NEAR[case]
    chosen = list(configurations(model, place))
    assert len(chosen) > 300
    for c in chosen[:: len(chosen) // 40]:
        step = simulate(model, place, c, keep=False)
        seconds, nbytes = estimate(model, place, c)
        assert seconds == pytest.approx(step.seconds, rel=0.12), c
        assert nbytes == pytest.approx(step.peak, rel=0.01), c


def test_what_leaves_a_node_takes_the_network():
    def seconds(c, **links):
        return simulate(SMALL, Cluster(A100_DEVICE, c.gpus, overhead=0.0, **links), c, keep=False).seconds

    slower = {"network": slow(A100_DEVICE, 1000)}
    for c in (Configuration(4, 4), Configuration(pipeline=8, data=2), Configuration(2, 2, 4, interleave=2), Configuration(data=16)):
        assert seconds(c, **slower) > 1.5 * seconds(c), c
    for c in (Configuration(8), Configuration(2, 4), Configuration(pipeline=2, data=4)):
        assert seconds(c, **slower) == seconds(c), c
    place = Cluster(A100_DEVICE, 32, node=8, pod=16, oversubscription=4)
    one, other, third = place.between(0, 15), place.between(8, 23), place.between(3, 7)
    assert (
        one.bandwidth == 4 * other.bandwidth == A100_DEVICE.network.bandwidth * A100_DEVICE.network.efficiency
        and third == A100_DEVICE.inside
    )
    assert (
        place.link(8, 1) == A100_DEVICE.inside
        and place.link(2, 8).bandwidth == one.bandwidth
        and place.link(4, 8).bandwidth == other.bandwidth
    )
    assert place.link(4, 4).bandwidth == 2 * one.bandwidth, "two of a group in each node have a way out each"
    assert place.link(3, 1).bandwidth < A100_DEVICE.inside.bandwidth, "the third group of three lies in two nodes"


def test_only_one_step_of_the_pipeline_crosses_nodes():
    model = replace(SMALL, layers=16, batch=8)
    costs = StageCosts(model, Cluster(A100_DEVICE, 16), Configuration(4, 4))
    assert costs.message[0] == costs.message[2] < costs.message[1] == costs.message[3]


def test_the_search_gives_as_many_as_are_asked_for():
    place = Cluster(replace(A100_DEVICE, memory=3 * GIB), 16)
    found = best(WIDE, place, 7, max_simulated=2)
    assert len(found) == 7 and all(step.fits for step in found)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (A100_DEVICE, {"flops": 0.0}),
        (A100_DEVICE, {"flops": float("nan")}),
        (A100_DEVICE, {"memory_bandwidth": -1.0}),
        (A100_DEVICE, {"processors": 0}),
        (A100_DEVICE, {"matrix": 1.5}),
        (A100_DEVICE, {"memory": float("inf")}),
        (A100_DEVICE.inside, {"bandwidth": 0}),
        (A100_DEVICE.inside, {"efficiency": 5}),
        (A100_DEVICE.inside, {"latency": float("inf")}),
        (Cluster(A100_DEVICE, 8), {"gpus": True}),
        (Cluster(A100_DEVICE, 8), {"node": 0}),
        (Cluster(A100_DEVICE, 8), {"pod": 12}),
        (Cluster(A100_DEVICE, 8), {"overhead": -5}),
        (Cluster(A100_DEVICE, 8), {"overhead": float("inf")}),
        (Cluster(A100_DEVICE, 8), {"oversubscription": 0.5}),
        (SMALL, {"gated": "no"}),
        (SMALL, {"layers": 10**9}),
    ],
)
def test_what_cannot_be_is_not_described(kind, changes):
    with pytest.raises(ValueError, match=r"must|is |has "):
        replace(kind, **changes)


def test_the_search_finds_what_trying_all_finds():
    model, place = replace(SMALL, batch=16), Cluster(replace(A100_DEVICE, memory=GIB), 8, overhead=0.01)
    steps = [simulate(model, place, c, keep=False) for c in configurations(model, place)]
    fastest = min((step for step in steps if step.fits), key=lambda step: step.seconds)
    found = best(model, place)
    assert found[0].seconds == pytest.approx(fastest.seconds) and all(step.fits for step in found)
    assert [s.seconds for s in found] == sorted(s.seconds for s in found)
    with pytest.raises(PlanError, match="does not fit: every configuration takes at least"):
        best(GPT_175B, Cluster(A100_DEVICE, 8))


BAD = {
    "7 × 1 × 1 are 7 devices, but the cluster has 8": dict(tensor=7),
    "tensor=3 does not divide a node of 8: some of its groups would span two nodes": dict(tensor=3, data=8),
    "tensor=16 does not fit in a node of 8": dict(tensor=16),
    "pipeline × interleave=3 does not divide 8, the layers": dict(pipeline=3),
    "does not divide 32, the batch": dict(tensor=1, data=8, micro_batch=5),
    "interleave needs a pipeline": dict(data=8, interleave=2),
    "needs a multiple of that many micro-batches; got 2": dict(pipeline=4, data=2, interleave=2, micro_batch=8),
    "recompute must be one of none, selective, full; got 'some'": dict(data=8, recompute="some"),
    "data must be a whole number from 1 to 1,000,000; got 8.0": dict(data=8.0),
    "data must be a whole number from 1 to 1,000,000": dict(data=10**5000),
    "sequence_parallel must be True or False": dict(data=8, sequence_parallel=1),
}


@pytest.mark.parametrize("said", BAD)
def test_what_does_not_fit_together_gets_a_sentence(said):
    c = Configuration(**BAD[said])
    place = Cluster(A100_DEVICE, c.gpus if "devices" not in said and isinstance(c.gpus, int) and c.gpus < 100 else 8)
    with pytest.raises(PlanError) as error:
        check_configuration(SMALL, place, c)
    assert said in str(error.value)


def test_what_is_printed_is_no_list_of_a_billion():
    assert str(Configuration(sequence_parallel=10**9, sharded_optimizer=10**9)) == str(Configuration())


FILES = {
    "[model]\nlayers = 4": "[model] also needs heads and hidden, or a preset",
    "[model]\npreset = '9b'": "there is no model '9b'",
    "[model]\npreset = '7b'\nwidth = 3": "[model] has 'width'; it may have",
    "[model]\nlayers = 4\nhidden = 65\nheads = 4": "heads=4 does not divide hidden=65",
    "[cluster]\ngpus = 'many'": "gpus must be a whole number, 1 or more; got 'many'",
    "[cluster]\ngpus = true": "gpus must be a whole number, 1 or more; got True",
    "[cluster]\ngpus = 0": "gpus must be a whole number, 1 or more; got 0",
    "[cluster]\ngpus = 8\ninside = {bandwidth = 0}": "must have a bandwidth greater than 0; got 0",
    "[cluster]\ngpus = 8\ninside = {latency = 1e-5}": "[cluster.inside] also needs bandwidth",
    "[cluster]\ngpus = 8\ndevice = {name = 'h100', flops = 0}": "must have a flops greater than 0",
    "[cluster]\ngpus = 8\ndevice = {name = 'mine', flops = 1e15}": "[cluster.device] also needs inside and matrix and memory",
    "[cluster]\ngpus = 8\noversubscription = 0": "must have an oversubscription greater than 0",
    "[model]\npreset = '7b'\ngated = 'no'": "gated in [model] must be true or false; got 'no'",
    "[model]\npreset = '7b'\nlayers = 1000000000": "layers must be a whole number from 1 to 10,000,000",
    "[cluster]\ngpus = 8\ndevice = 'tpu'": "run.toml: there is no device 'tpu': choose one of a100, a100-40, h100,",
    "[cluster]\ngpus = 8\nnetwork = 3": "network must be a table",
    "[cluster]\ngpus = 8\nnetwork = {speed = 3}": "[cluster.network] has 'speed'",
    "[cluster]\ngpus = 8\nnetwork = {bandwidth = 25}": "bandwidth in [cluster.network] is in bytes a second, so at least 1e+06; got 25",
    "[cluster]\ngpus = 8\ndevice = {name = 'a100', memory = 80}": "memory in [cluster.device] is in bytes, so at least 1e+09",
    "[other]\nx = 1": "it may have the tables [model] and [cluster]",
    "gpus = ": "is not valid TOML",
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_that_is_not_understood_gets_a_sentence(text, tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert command.main(["plan", "--model", "7b", "--gpus", "8", "--file", str(path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert FILES[text] in said and said.count("course_lib.sim:") == 1 and not (tmp_path / "out").exists()


def test_a_model_and_a_cluster_from_a_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        "[model]\npreset = '7b'\nsequence = 2048\n[cluster]\ngpus = 24\nnode = 4\ndevice = {name = 'h100', memory = 94e9}\n"
        "network = {bandwidth = 12.5e9, latency = 2e-5}\n"
    )
    model, place = toml_config.read(path, None, None, None)
    assert model == replace(MODEL_PRESETS["7b"], sequence=2048, name="7B (run.toml)")
    assert (place.gpus, place.node, place.device.memory, place.device.processors) == (24, 4, 94e9, 132)
    assert place.network == Link(12.5e9, 1.0, 2e-5) and place.inside == H100_DEVICE.inside
    path.write_text("[model]\npreset = '22b'\nhidden = 8192\n[cluster]\nnode = 4\n")
    model, place = toml_config.read(path, None, A100_DEVICE, 64)
    assert model.feed_forward == 4 * 8192 and model.name == "22B (run.toml)"
    assert (place.device, place.gpus, place.node, place.inside) == (A100_DEVICE, 64, 4, A100_DEVICE.inside)


def test_the_command_prints_the_best_and_writes_a_report_and_a_trace(tmp_path, capsys):
    words = [
        "plan",
        "--model",
        "7b",
        "--gpus",
        "16",
        "--device",
        "a100",
        "--tokens",
        "2e12",
        "--price",
        "1.5",
        "--out",
        str(tmp_path / "a" / "b"),
    ]
    assert command.main(words) == 0
    said = capsys.readouterr().out
    assert said.count("t 1 ×") + said.count("t 2 ×") + said.count("t 4 ×") >= 5 and "GPU-days" in said and "MFU" in said
    page = (tmp_path / "a" / "b" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3 and "http" not in page
    trace = json.loads((tmp_path / "a" / "b" / "trace.json").read_text())["traceEvents"]
    assert {"X", "M", "C"} == {e["ph"] for e in trace}
    for words, problem in (
        (["plan", "--gpus", "8"], "specify a model and a number of devices"),
        (["plan", "--model", "7b", "--gpus", "0"], "gpus must be a whole number, 1 or more; got 0"),
        (["plan", "--model", "175b", "--gpus", "8"], "does not fit"),
        (["plan", "--model", "7b", "--gpus", "8", "--price", "-1"], "--price must be more than 0"),
        (["plan", "--model", "7b", "--gpus", "8", "--tokens", "inf"], "--tokens must be more than 0; got inf"),
        (["plan", "--model", "7b", "--gpus", "8", "--price", "2"], "give its length with --tokens"),
        (["plan", "--model", "7b", "--gpus", "8", "--device", "tpu"], "there is no device 'tpu'"),
    ):
        assert command.main([*words, "--out", str(tmp_path / "c")]) == 2
        assert problem in capsys.readouterr().err and not (tmp_path / "c").exists()


def test_the_map_says_what_does_not_fit():
    times = report.grid_times(replace(MODEL_PRESETS["22b"], batch=64), Cluster(A100_DEVICE, 16))
    assert times[1, 1, 16] == np.inf and min(times.values()) < np.inf


@pytest.mark.parametrize(("pipeline", "interleave", "data"), [(1, 1, 4), (4, 1, 2), (2, 2, 2)])
def test_a_step_is_a_trace_like_those_of_real_ranks(pipeline, interleave, data):
    place = Cluster(A100_DEVICE, 8)
    step = simulate(SMALL, place, Configuration(tensor=8 // pipeline // data, pipeline=pipeline, data=data, interleave=interleave))
    found = pictures.as_trace(step)
    assert found.seconds == pytest.approx(step.seconds - place.overhead)
    for rank, summary in enumerate(found.summaries()):
        work = sum(e.end - e.start for e in step.events if e.rank == rank and e.kind in ("forward", "backward", "update"))
        assert summary.seconds[COMPUTING] == pytest.approx(work)
    messages = [e for e in step.events if e.kind == "message"]
    assert sorted(a.sent for a in found.arrows()) == pytest.approx(sorted(e.start for e in messages))
    assert all(a.received >= a.sent for a in found.arrows()) and bool(messages) == (pipeline > 1)
    assert pictures.timeline(step, "A step").png().startswith(b"\x89PNG")
