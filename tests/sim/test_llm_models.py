"""Models of today: experts, latent attention, uneven stages, context parallel ranks, shards and 8 bits; and the search over all of it."""

from dataclasses import replace

import pytest

from course_lib.sim import __main__ as command
from course_lib.sim.core.hardware import Link
from course_lib.sim.llm.analytic import estimate
from course_lib.sim.llm.cluster import A100_DEVICE, DEVICE_PRESETS, H100_DEVICE, Cluster
from course_lib.sim.llm.configuration import Configuration, PlanError, check_configuration, problems
from course_lib.sim.llm.costs.exchanges import AllToAll, Exchanges
from course_lib.sim.llm.costs.stage import StageCosts
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.hardware.software import SOFTWARE_PRESETS, Software
from course_lib.sim.llm.transformer import MODEL_PRESETS, Transformer
from course_lib.sim.plan import reasons, search, toml_config
from course_lib.sim.plan.space import all_configurations

SMALL = Transformer("experts", 8, 1024, 16, 4096, 1000, 64, 2048, True, 4, True, False, experts=8, top_k=2)
DENSE = replace(SMALL, experts=0, top_k=0)
PLACE = Cluster(H100_DEVICE, 16)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("8b", 8.03, 8.03),
        ("70b", 69.0, 69.0),  # Touvron et al., 2023: 70B; the model's card: 69B
        ("405b", 405.9, 405.9),  # Grattafiori et al., 2024: 8B, 70B, 405B
        ("mixtral-8x7b", 46.7, 12.9),  # Jiang et al., 2024: 47B, 13B; the model's card: 46.7B, 12.9B
        ("mixtral-8x22b", 140.6, 39.1),  # Mistral AI, 2024: 141B, 39B
        ("deepseek-v3", 671.0, 37.6),  # DeepSeek-AI, 2024: 671B, 37B
        ("qwen3-235b", 235.1, 22.2),  # Yang et al., 2025: 235B, 22B
    ],
)
def test_presets_have_as_many_parameters_as_published(name, total, active):
    model = MODEL_PRESETS[name]
    assert model.parameters() / 1e9 == pytest.approx(total, rel=0.002)
    assert model.parameters(active=True) / 1e9 == pytest.approx(active, rel=0.002)


@pytest.mark.parametrize("name", ["8b", "mixtral-8x7b", "deepseek-v3"])
def test_all_devices_together_hold_all_parameters(name):
    model = replace(MODEL_PRESETS[name], batch=1024)
    experts = dict(expert=8, expert_tensor=2) if model.experts else {}
    c = Configuration(2, 4, 8, 1, 1, True, uneven=True, **experts)
    costs = StageCosts(model, Cluster(H100_DEVICE, 64), c)
    held = 0.0
    for rank in range(4):
        routed, others = costs.all_counts(rank)[True], costs.all_counts(rank)[False]
        held += routed * c.expert * c.expert_tensor + others * c.tensor
    routers = model.hidden * model.experts * model.expert_layers * (c.tensor - 1)  # each tensor parallel rank has all of it
    assert held - routers == pytest.approx(model.parameters(), rel=1e-9)


def test_flop_are_those_of_the_parameters_that_a_position_meets():
    for name in ("mixtral-8x7b", "deepseek-v3", "70b"):
        model = replace(MODEL_PRESETS[name], sequence=1, batch=1)  # hardly any scores
        met = model.parameters(active=True) - model.vocabulary * model.hidden
        assert model.flop() == pytest.approx(6 * met, rel=0.001)


@pytest.mark.parametrize(("stages", "first", "last"), [((16, 1), 7, 7), ((16, 8), 0, 0), ((8, 8), 1, 1), ((10, 1), 11, 11)])
def test_405b_has_fewer_layers_on_the_first_and_on_the_last_stage(stages, first, last):
    pipeline, chunks = stages
    c = Configuration(8, pipeline, 2, chunks, uneven=True)
    numbers = [len(c.stage_layers(126, stage)) for stage in range(pipeline * chunks)]
    assert (numbers[0], numbers[-1], sum(numbers)) == (first, last, 126) and len(set(numbers[1:-1])) == 1
    place = Cluster(H100_DEVICE, c.gpus)
    model = replace(MODEL_PRESETS["405b"], batch=64 * pipeline)
    assert not problems(model, place, c)
    assert ("does not divide 126" in str(problems(model, place, replace(c, uneven=False)))) == (126 % (pipeline * chunks) > 0)
    step = simulate(model, place, c, keep=False)
    assert estimate(model, place, c)[0] == pytest.approx(step.seconds, rel=0.03)


def test_stages_with_fewer_layers_at_the_ends_make_up_for_the_vocabulary():
    model = replace(MODEL_PRESETS["8b"], layers=30, batch=64)
    wide = replace(model, layers=32)
    place = Cluster(H100_DEVICE, 32)
    costs = [StageCosts(m, place, Configuration(4, 8, 1, uneven=True)) for m in (model, wide)]
    busy = [[one.stage(k).forward for k in range(8)] for one in costs]
    assert busy[0][-1] < busy[1][-1] and busy[0][1:-1] == busy[1][1:-1]


def test_experts_cost_what_a_position_visits_and_weigh_what_they_are():
    one = simulate(SMALL, PLACE, Configuration(data=16, expert=8))
    more = simulate(replace(SMALL, experts=64), PLACE, Configuration(data=16, expert=8))
    twice = simulate(replace(SMALL, top_k=4), PLACE, Configuration(data=16, expert=8))
    assert more.state[0]["weights"] > 4 * one.state[0]["weights"] and more.seconds < 1.6 * one.seconds
    assert twice.seconds > 1.2 * one.seconds and twice.state == one.state
    padded = simulate(replace(SMALL, capacity=2.0), PLACE, Configuration(data=16, expert=8))
    assert padded.seconds > 1.2 * one.seconds and padded.peak > one.peak
    shared = replace(SMALL, shared_experts=1)
    assert shared.parameters(True) - SMALL.parameters(True) == 8 * shared.expert_matrices()
    assert simulate(shared, PLACE, Configuration(data=16, expert=8)).seconds > one.seconds


def test_what_experts_exchange_takes_the_links_that_it_crosses():
    fast, slow = Link(100.0), Link(10.0)
    assert AllToAll(8, 8, fast, slow).seconds(800.0) == pytest.approx(800 * 7 / 8 / 100)
    assert AllToAll(16, 8, fast, slow).seconds(800.0) == pytest.approx(800 / 2 / 10)
    assert AllToAll(16, 8, fast, slow).seconds(800.0, copies=0.5) == pytest.approx(800 / 2 / 10 / 2)
    assert AllToAll(1, 1, fast, slow).seconds(800.0) == 0.0
    c = Configuration(tensor=2, data=8, expert=8, sequence_parallel=True)
    assert Exchanges.of(PLACE, c).experts.near == 8 and Exchanges.of(PLACE, replace(c, expert_tensor=2)).experts.near == 4
    slower = replace(PLACE, network=replace(PLACE.network, bandwidth=1e9))
    within, beyond = (Configuration(data=16, expert=e) for e in (8, 16))
    model = replace(SMALL, experts=16)
    for c, network in ((within, False), (beyond, True)):
        cost = [StageCosts(model, place, c).stage(0).exchanged for place in (PLACE, slower)]
        assert (cost[1] > 2 * cost[0]) == network
    limited = replace(model, top_k=8, nodes_per_position=2)
    costs = [StageCosts(m, slower, beyond).stage(0).exchanged for m in (replace(model, top_k=8), limited)]
    assert costs[1] < 0.5 * costs[0]
    hidden = replace(PLACE, software=Software("all behind", hidden_experts=1.0))
    assert StageCosts(model, hidden, beyond).stage(0).exchanged == pytest.approx(0.0, abs=1e-12)


def test_a_context_axis_shares_activations_and_scores():
    model = replace(DENSE, sequence=65536, batch=16)
    one, four = (simulate(model, PLACE, Configuration(data=16 // n, context=n)) for n in (1, 4))
    assert four.peak - sum(four.state[0].values()) == pytest.approx((one.peak - sum(one.state[0].values())) / 4, rel=0.01)
    assert four.seconds < 1.15 * one.seconds, "the ring is behind attention"
    gathered = replace(PLACE, software=Software("gathers", gathered_context=True))
    slow = Link(1e9)
    rings = [StageCosts(model, replace(place, network=slow, inside=slow), Configuration(data=4, context=4)) for place in (PLACE, gathered)]
    assert 0 < rings[0].stage(0).exchanged < rings[1].stage(0).exchanged
    with pytest.raises(PlanError, match="needs fused attention"):
        check_configuration(replace(model, fused=False), PLACE, Configuration(data=4, context=4))
    assert StageCosts(model, PLACE, Configuration(data=4, context=4)).copies[False] == 16


def test_stages_of_zero_shard_one_thing_more_each():
    n = 16
    held = [simulate(DENSE, PLACE, Configuration(data=n, zero=stage)).state[0] for stage in range(4)]
    for name, first in (("optimizer state", 1), ("gradients", 2)):
        assert [h[name] for h in held] == pytest.approx([held[0][name] / (n if stage >= first else 1) for stage in range(4)])
    layer = 2 * 2 * DENSE.layer_parameters()
    assert held[3]["weights"] == pytest.approx(held[0]["weights"] / n + layer) and held[2]["weights"] == held[0]["weights"]
    assert Configuration(data=n, sharded_optimizer=True).sharding == 1
    slow = replace(PLACE, network=Link(1e9))
    seconds = [simulate(DENSE, slow, Configuration(data=n, zero=stage)).seconds for stage in (1, 2, 3)]
    assert seconds[0] < seconds[1] < seconds[2], "weights and gradients travel for each micro-batch"


def test_8_bits_are_faster_where_there_are_8_bits():
    model = replace(MODEL_PRESETS["8b"], batch=64)
    sixteen, eight = (simulate(model, PLACE, Configuration(2, 1, 8, precision=p)) for p in ("bf16", "fp8"))
    assert 0.5 * sixteen.seconds < eight.seconds < 0.85 * sixteen.seconds
    with pytest.raises(PlanError, match="which A100 80 GB does not have"):
        check_configuration(model, Cluster(A100_DEVICE, 16), Configuration(2, 1, 8, precision="fp8"))


def test_latent_attention_keeps_its_own_widths():
    model = MODEL_PRESETS["deepseek-v3"]
    queries = 7168 * 1536 + 1536 * 128 * 192
    keys = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    assert model.attention_matrices() == queries + keys + 128 * 128 * 7168
    with pytest.raises(ValueError, match="needs a kv_rank"):
        replace(MODEL_PRESETS["8b"], query_rank=512)


BAD = {
    "expert=2 needs a model with experts; experts has none": (DENSE, dict(data=16, expert=2)),
    "expert=3 does not divide 8, the experts": (SMALL, dict(data=16, expert=3)),
    "expert_tensor=4 must divide tensor=2": (SMALL, dict(tensor=2, data=8, sequence_parallel=True, expert_tensor=4)),
    "expert × expert_tensor=8 does not divide the 2 × 1 × 1 devices of a stage": (
        SMALL,
        dict(tensor=2, pipeline=8, sequence_parallel=True, expert=8),
    ),
    "experts with tensor > 1 need sequence_parallel": (SMALL, dict(tensor=2, data=8)),
    "zero must be one of 0, 1, 2, 3; got 4": (SMALL, dict(data=16, zero=4)),
    "zero must be one of 0, 1, 2, 3; got True": (SMALL, dict(data=16, zero=True)),
    "precision must be one of bf16, fp8; got 'fp4'": (SMALL, dict(data=16, precision="fp4")),
    "2 × context=32 does not divide 4112, the positions": (replace(DENSE, sequence=4112), dict(context=16)),
    "8 layers on 5 stages: the first and the last cannot have that many layers fewer": (
        replace(DENSE, layers=8, batch=64),
        dict(pipeline=5, uneven=True),
    ),
}


@pytest.mark.parametrize("said", list(BAD)[:-1])
def test_axes_that_do_not_fit_get_a_sentence(said):
    model, grid = BAD[said]
    with pytest.raises(PlanError) as error:
        check_configuration(model, PLACE, Configuration(**grid))
    assert said in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [dict(top_k=9), dict(top_k=0), dict(capacity=0.5), dict(dense_layers=8), dict(experts=0), dict(capacity=float("nan")), dict(tied=1)],
    ids=str,
)
def test_models_that_cannot_be_are_not_described(changes):
    with pytest.raises(ValueError, match=r"must|needs"):
        replace(SMALL, **changes)


def test_devices_are_ordered_as_their_data_sheets():
    model = replace(MODEL_PRESETS["8b"], batch=128)
    seconds = {name: simulate(model, Cluster(device, device.node), Configuration(1, 1, device.node, zero=1)).seconds * device.node
               for name, device in DEVICE_PRESETS.items() if 128 % device.node == 0}  # fmt: skip
    assert seconds["a100-40"] > seconds["a100"] > seconds["h100"] > seconds["h200"] > seconds["b200"]
    assert seconds["h100"] > seconds["mi300x"]
    domain = Cluster(DEVICE_PRESETS["gb200"], 144)
    assert domain.node == 72 and domain.link(36, 1) == domain.inside and domain.link(2, 72) != domain.inside


def test_a_file_describes_experts_networks_and_software(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        "[model]\npreset = 'mixtral-8x7b'\nexperts = 16\ncapacity = 1.25\nhidden = 8192\n[cluster]\ngpus = 64\nnetwork = 'roce'\n"
        "device = 'h200'\nsoftware = {name = 'megatron-core', hidden_experts = 1.0}\n"
    )
    model, place = toml_config.read(path, None, None, None)
    assert (model.experts, model.capacity, model.head_width, model.value_width, model.feed_forward) == (16, 1.25, 256, 256, 14336)
    assert place.network.efficiency < DEVICE_PRESETS["h200"].network.efficiency and place.device == DEVICE_PRESETS["h200"]
    assert place.software == replace(SOFTWARE_PRESETS["megatron-core"], hidden_experts=1.0)
    for text, said in (
        ("[cluster]\ngpus = 8\nnetwork = 'token ring'", "there is no network 'token ring': choose one of infiniband, roce"),
        ("[cluster]\ngpus = 8\nsoftware = 'mine'", "there is no software 'mine'"),
        ("[cluster]\ngpus = 8\nsoftware = {hidden_experts = 2.0}", "is a fraction, 0 to 1; got 2.0"),
        ("[model]\npreset = 'mixtral-8x7b'\ntop_k = 20", "top_k must be a whole number from 1 to experts=8; got 20"),
    ):
        path.write_text(text)
        with pytest.raises((PlanError, ValueError)) as error:
            toml_config.read(path, MODEL_PRESETS["7b"], None, 8)
        assert said in str(error.value)


def test_the_search_of_all_axes_finds_what_trying_all_finds():
    model, place = replace(SMALL, batch=32), Cluster(replace(H100_DEVICE, memory=3e9), 8, overhead=0.01)
    some = list(all_configurations(model, place))
    axes = ("tensor", "context", "pipeline", "expert", "expert_tensor", "zero", "micro_batch", "interleave", "recompute")
    assert all(len({getattr(c, name) for c in some}) > 1 for name in axes)
    steps = [simulate(model, place, c, keep=False) for c in some]
    fastest = min((step for step in steps if step.fits), key=lambda step: step.seconds)
    found = search.best(model, place, whole=True)
    assert found[0].seconds == pytest.approx(fastest.seconds) and all(step.fits for step in found)
    for step in steps[:: len(steps) // 50]:
        seconds, nbytes = estimate(model, place, step.configuration)
        assert seconds == pytest.approx(step.seconds, rel=0.12) and nbytes == pytest.approx(step.peak, rel=0.01)


def test_a_choice_has_reasons_that_hold():
    model, place = replace(MODEL_PRESETS["70b"], batch=256), Cluster(H100_DEVICE, 64)
    step = simulate(model, place, Configuration(8, 4, 2, 2, 1, True, zero=1))
    said = reasons.reasons(step)
    assert "tensor 8, not 4: " in said[0] and "not 16: leaves the domain of 8 devices that fast links connect" in said[0]
    slower = simulate(model, place, replace(step.configuration, recompute="full")).seconds / step.seconds - 1
    assert float(said[-1].split("full: ")[1].split("%")[0]) == pytest.approx(100 * slower, abs=0.5)
    fitting = search.candidates(model, place, all_configurations(model, place))
    what = reasons.changes([step], fitting)
    assert [line.split(":")[0] for line in what] == ["A network twice as fast", "Texts twice as long, and half as many", "Half the memory"]


def test_the_command_plans_experts_and_says_why(tmp_path, capsys):
    words = ["plan", "--model", "mixtral-8x7b", "--gpus", "64", "--device", "h200", "--precision", "fp8", "--software", "megatron-core"]
    words += ["--network", "roce", "--node", "4"]
    assert command.main([*words, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "leaves the domain of 4 devices" in said or "t 4" not in said.splitlines()[3]
    assert said.count("fp8") >= 5 and "The fullest device" in said and "Why the first:" in said and "What would change it:" in said
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Why the first</h2>" in page and page.count("data:image/png;base64,") == 3
    for option, value, problem in (
        ("--software", "tpu", "there is no software 'tpu'"),
        ("--network", "tpu", "there is no network 'tpu'"),
        ("--node", "0", "a cluster's node must be a whole number, 1 or more; got 0"),
    ):
        assert command.main(["plan", "--model", "7b", "--gpus", "8", option, value, "--out", str(tmp_path)]) == 2
        assert problem in capsys.readouterr().err
