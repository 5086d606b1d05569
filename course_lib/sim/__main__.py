"""Command line of the simulator: ``python -m course_lib.sim plan`` and ``validate``."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from dataclasses import replace
from pathlib import Path

from course_lib.sim.llm.cluster import DEVICE_PRESETS, Cluster
from course_lib.sim.llm.configuration import PRECISIONS, PlanError
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.hardware.presets import NETWORK_EFFICIENCIES
from course_lib.sim.llm.hardware.software import MEGATRON_2022, SOFTWARE_PRESETS
from course_lib.sim.llm.measured import activations, comparison, fit, rows
from course_lib.sim.llm.measured.figure import errors_picture
from course_lib.sim.llm.transformer import MODEL_PRESETS, Transformer
from course_lib.sim.plan import explorer, reasons, report, search, table, toml_config
from course_lib.sim.plan.space import all_configurations
from course_lib.utils import progress

TOML_FORMAT_HELP = """Format of a file (sizes as counts, rates in bytes per second, memory in bytes; every key has a default):

  [model]
  preset = "7b"               # then only what differs from it; or layers, hidden and heads
  sequence = 8192             # batch, vocabulary, feed_forward, gated, kv_heads, fused, dropout, tied
  experts = 8                 # top_k, shared_experts, expert_feed_forward, dense_layers, capacity
  kv_rank = 512               # latent attention: query_rank, rotary_width, head_width, value_width
  [cluster]
  gpus = 64
  node = 8                    # devices that fast links connect, 72 in an NVL72 domain
  device = "a100"             # or {name = "a100", memory = 40e9}, or all of a device's fields
  network = "roce"            # or "infiniband", or {bandwidth = 25e9, efficiency = 0.9, latency = 1e-5}; inside is a table like this
  pod = 256                   # devices behind one switch; oversubscription = 2 beyond it
  overhead = 0.1              # seconds of a step outside the layers
  software = "megatron-core"  # or {name = "megatron-core", hidden_experts = 1.0}, which hides exchanges behind computation
"""


PAGE = Path("plan", "page.html")
COUNT = 5


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.sim", description="Training steps of language models, simulated.")
    commands = parser.add_subparsers(dest="command", required=True)
    how = argparse.RawDescriptionHelpFormatter
    plan = commands.add_parser("plan", help="the best configurations of a model on a cluster", formatter_class=how, epilog=TOML_FORMAT_HELP)
    plan.add_argument("--model", help=f"one of {', '.join(MODEL_PRESETS)}")
    plan.add_argument("--gpus", type=int, help="number of devices")
    plan.add_argument("--device", help=f"one of {', '.join(DEVICE_PRESETS)} (h100)")
    plan.add_argument("--network", help=f"between nodes, one of {', '.join(NETWORK_EFFICIENCIES)}")
    plan.add_argument("--node", type=int, help="devices of a node, which fast links connect (as the device is sold)")
    plan.add_argument("--software", help=f"one of {', '.join(SOFTWARE_PRESETS)} ({MEGATRON_2022.name})")
    plan.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0], help="of matrix products (bf16)")
    plan.add_argument("--file", type=Path, help="a TOML file, which overrides the three options above; see below")
    plan.add_argument("--count", type=int, help="number of configurations (5)")
    plan.add_argument("--tokens", type=float, help="tokens of the whole run, to compute its duration")
    plan.add_argument("--price", type=float, help="price of a GPU-hour, to compute the cost of those tokens")
    plan.add_argument("--out", type=Path, help="folder for the report and the trace (plan)")
    page = "instead, write a page with sliders for batch, length and grid, to open in a browser (plan/page.html); takes minutes"
    plan.add_argument("--page", type=Path, nargs="?", const=PAGE, metavar="FILE", help=page)
    validate = commands.add_parser("validate", help="compare simulated steps with published measurements")
    validate.add_argument("--out", type=Path, help="a PNG file for a figure of the errors")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Execute the command line; return 2 if that is impossible."""
    a = parse_args(argv)
    try:
        return _plan(a) if a.command == "plan" else _validate(a)
    except (PlanError, ValueError) as error:
        print(f"course_lib.sim: {error}", file=sys.stderr)
    except OSError as error:
        print(f"course_lib.sim: {error.filename}: {error.strerror}.", file=sys.stderr)
    return 2


def _plan(a: argparse.Namespace) -> int:
    for name in ("count", "tokens", "price"):
        value = getattr(a, name)
        if value is not None and not 0 < value < math.inf:
            raise PlanError(f"--{name} must be more than 0; got {value}.")
        if value is not None and a.page:
            raise PlanError(f"--{name} is for the report, which --page replaces: leave out one of the two.")
    if a.page and a.out:
        raise PlanError("--out is a folder for the report, which --page replaces: give the page's file, --page FILE.")
    if a.price and not a.tokens:
        raise PlanError("--price computes the cost of a whole run: give its length with --tokens.")
    model, place = _described(a)
    return _page(a, model, place) if a.page else _report(a, model, place)


def _described(a: argparse.Namespace) -> tuple[Transformer, Cluster]:
    model = toml_config.model_named(a.model) if a.model else None
    device = toml_config.device_named(a.device) if a.device else None
    place = Cluster(device or toml_config.device_named("h100"), a.gpus) if a.gpus is not None else None
    if a.file:
        model, place = toml_config.read(a.file, model, device, a.gpus)
    if model is None or place is None:
        raise PlanError("specify a model and a number of devices: --model and --gpus, or a file with both (--file).")
    if a.software:
        place = replace(place, software=toml_config.software_named(a.software))
    if a.network:
        place = replace(place, network=toml_config.network_named(a.network, place.device))
    if a.node is not None:
        place = replace(place, node=a.node)
    return model, place


def _page(a: argparse.Namespace, model: Transformer, place: Cluster) -> int:
    if a.page == PAGE:
        PAGE.parent.mkdir(exist_ok=True)
    if not a.page.parent.is_dir() or a.page.is_dir():  # before the search
        wrong = f"{a.page} is a folder" if a.page.is_dir() else f"there is no folder {a.page.parent}"
        raise PlanError(f"--page must name a file in a folder that exists, such as page.html; {wrong}.")
    with contextlib.ExitStack() as stack:
        bars = []

        def searched(done: int, of: int) -> None:
            if not done:
                bars.append(stack.enter_context(progress.bar(of, "Simulating", "batch and length")))
            bars[0].update(int(done > 0))

        found = table.build(model, place, precision=a.precision, searched=searched)
    a.page.write_text(explorer.Explorer(found).page(), encoding="utf-8")
    print(f"The page is {a.page}: {len(found.entries):,} simulated steps; open it in a browser.")
    return 0


def _report(a: argparse.Namespace, model: Transformer, place: Cluster) -> int:
    fitting = search.candidates(model, place, all_configurations(model, place, precision=a.precision))
    steps = search.simulated(model, place, fitting, a.count or COUNT, max_events=search.MAX_EVENTS)
    print(f"{model.name} on {place.gpus} × {place.device.name}, {model.batch} texts of {model.sequence} tokens per step:\n")
    print(report.table(steps))
    if a.tokens:
        print(f"\n{report.whole_run(steps[0], a.tokens, a.price)}.")
    print(f"\n{report.memory_table(steps[0])}")
    why, otherwise = reasons.reasons(steps[0]), reasons.changes(steps, fitting)
    print(
        "\n".join(["", "Why the first:", *(f"  {line}" for line in why), "", "What would change it:", *(f"  {line}" for line in otherwise)])
    )
    out = a.out or Path("plan")
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.html").write_text(
        report.render_html(model, place, steps, a.price, a.tokens, (why, otherwise), fitting), encoding="utf-8"
    )
    report.write_trace(simulate(model, place, steps[0].configuration), out / "trace.json")
    print(f"\nThe report is {out / 'report.html'}; open {out / 'trace.json'} in ui.perfetto.dev.")
    return 0


def _validate(a: argparse.Namespace) -> int:
    times = comparison.times()
    for source in rows.SOURCES:
        print(comparison.table([row for row in times if row.source == source], f"Seconds per step ({source})", "s"), end="\n\n")
    print(f"All rows that are not fitted, {sum(not row.fitted for row in times)} of {len(times)}: {comparison.summary(times)}.")
    print(
        "Fitted, by a rule stated before (course_lib/sim/llm/measured/rows.py): the rows on a single node, to one number of each device.\n"
    )
    unseen = comparison.times(rows.UNSEEN)
    print(comparison.table(unseen, f"A table read after everything was set, none of it fitted ({rows.NEMO})", "s"))
    print(
        f"These rows: {comparison.summary(unseen)}. The program matters, too: what this version did with Llama 3 8B in 10.89 s, that of the"
    )
    print("recipes above does in 9.33 s.\n")
    print(comparison.table(comparison.times(rows.FURTHER), f"Shown and not counted ({rows.ZERO_3}; {rows.EXPERTS})", "s"))
    print("That ZeRO-3 used one port of a node is concluded from these rows. What was recomputed of the models with experts, and how well")
    print("the experts were balanced, is not stated: nothing and perfectly are taken.\n")
    heading = "Activations of a layer, relative to tensor parallelism's (Korthikanti et al., 2022, table 2, figure 7)"
    print(comparison.table(activations.activations(), heading, "%"))
    print("Theirs and ours count the same arrays in two ways: bytes per layer by formula, and bytes that the simulated ranks hold.\n")
    for heading, found in (
        ("Settings that papers leave open: the errors with other values", fit.openings()),
        ("Without an effect, and each device's number fitted again, the errors are", fit.effects()),
        (
            "Assumed values, neither from a data sheet nor fitted. With another value, and the numbers fitted again, the errors are",
            fit.sensitivity(),
        ),
    ):
        print(f"{heading}:")
        for name, some in found:
            values = ", ".join(f"{row.error:+.1%}" for row in some) if len(some) < len(times) else comparison.summary(some, by_table=True)
            print(f"  {name:{66 if len(some) < len(times) else 40}}  {values}")
        print()
    if a.out:
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.write_bytes(errors_picture(times).png())
        print(f"The picture is {a.out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
