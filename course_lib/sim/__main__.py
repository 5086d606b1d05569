"""``python -m course_lib.sim plan`` and ``validate``: the simulator for those who come with a real question."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from course_lib.sim.llm import published
from course_lib.sim.llm.cluster import cluster
from course_lib.sim.llm.configuration import PlanError
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.transformer import PRESETS
from course_lib.sim.plan import described, report
from course_lib.sim.plan.search import best


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.sim", description="Training steps of language models, simulated.")
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan", help="the best configurations of a model on a cluster")
    plan.add_argument("--model", help=f"one of {', '.join(PRESETS)}")
    plan.add_argument("--gpus", type=int, help="how many devices")
    plan.add_argument("--device", default="h100", help="a100 or h100 (h100), in nodes of eight")
    plan.add_argument("--file", type=Path, help="a TOML file with [model] and [cluster], in place of the three above")
    plan.add_argument("--count", type=int, default=5, help="how many configurations (5)")
    plan.add_argument("--tokens", type=float, help="tokens of the whole run: how long it takes")
    plan.add_argument("--price", type=float, help="of a GPU for an hour: what that costs")
    plan.add_argument("--out", type=Path, default=Path("plan"), help="folder for the report and the trace (plan)")
    validate = commands.add_parser("validate", help="simulated steps beside what others have measured")
    validate.add_argument("--out", type=Path, help="a PNG file for the scatter plot")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Do what the command line says; 2 if that cannot be done."""
    a = parse(words)
    try:
        return _plan(a) if a.command == "plan" else _validate(a)
    except (PlanError, ValueError) as error:
        print(f"course_lib.sim: {error}", file=sys.stderr)
    except OSError as error:
        print(f"course_lib.sim: {error.filename}: {error.strerror}.", file=sys.stderr)
    return 2


def _plan(a: argparse.Namespace) -> int:
    model = described.model_named(a.model) if a.model else None
    place = cluster(a.device.lower(), a.gpus) if a.gpus is not None else None
    if a.file:
        model, place = described.read(a.file, model, place)
    if model is None or place is None:
        raise PlanError("say which model and how many devices: --model and --gpus, or a file with both (--file).")
    for name in ("count", "tokens", "price"):
        value = getattr(a, name)
        if value is not None and not value > 0:
            raise PlanError(f"--{name} must be more than 0; got {value}.")
    steps = best(model, place, a.count)
    print(f"{model.name} on {place.gpus} × {place.device.name}, {model.batch} texts of {model.sequence} tokens a step:\n")
    print(report.table(steps))
    if a.tokens:
        days = a.tokens / steps[0].tokens / 86400
        money = f", {days * place.gpus * 24 * a.price:,.0f} at {a.price:g} a GPU-hour" if a.price else ""
        print(f"\n{a.tokens / 1e9:,.0f} billion tokens: {days:,.1f} days, {days * place.gpus:,.0f} GPU-days{money}.")
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "report.html").write_text(report.page(model, place, steps, a.price, a.tokens), encoding="utf-8")
    report.trace(simulate(model, place, steps[0].configuration), a.out / "trace.json")
    print(f"\nThe report is {a.out / 'report.html'}; {a.out / 'trace.json'} is for ui.perfetto.dev.")
    return 0


def _validate(a: argparse.Namespace) -> int:
    times = published.times()
    print(published.table(times, f"Seconds an iteration ({published.SOURCE})", "s"))
    print()
    print(published.table(published.activations(), "Activations of a layer, as parts of tensor parallelism's (table 2, figure 7)", "%"))
    if a.out:
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.write_bytes(published.picture(times).png())
        print(f"\nThe picture is {a.out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
