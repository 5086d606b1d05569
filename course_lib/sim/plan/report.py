"""Report of a plan: a text table, an HTML page, and a trace for Perfetto."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Sequence
from pathlib import Path

from course_lib.sim.llm import pictures
from course_lib.sim.llm.analytic import estimate
from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.events import Step, simulate
from course_lib.sim.llm.transformer import Transformer
from course_lib.sim.plan.search import Candidate
from course_lib.sim.plan.space import configurations, grids
from course_lib.utils import wording

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem 1rem .2rem 0; vertical-align: top; } img { max-width: 100%; }
"""
TRACE_ROWS = ("compute", "messages to the next stage", "exchanges among replicas")  # rows per rank in the trace, as they may overlap
HEADINGS = ("step", "MFU", "memory", "tokens a day", "configuration")


def table_row(step: Step) -> tuple[str, ...]:
    """Format a configuration's results, in the order of `HEADINGS`."""
    return (
        wording.seconds(step.seconds),
        f"{step.utilisation:.1%}",
        f"{step.peak / 2**30:.1f} GiB",
        f"{step.tokens * 86400 / 1e9:.2f} billion",
        str(step.configuration),
    )


def table(steps: Sequence[Step]) -> str:
    """Format the results of several configurations as columns.

    Parameters
    ----------
    steps : sequence of Step
    """
    rows = [HEADINGS, *map(table_row, steps)]
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(HEADINGS) - 1)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)), cells[-1]]) for cells in rows)


def memory_table(step: Step) -> str:
    """Format the memory of the fullest device by kind."""
    kinds = pictures.memory_by_kind(step)
    rank = max(range(len(step.peaks)), key=step.peaks.__getitem__)
    held = ", ".join(f"{kind} {nbytes / 2**30:.1f}" for kind, nbytes in kinds.items())
    of = f"{step.peak / 2**30:.1f} of {step.cluster.device.memory / 2**30:.1f}"
    return f"The fullest device (stage {rank}) holds, in GiB: {held}; together {of}."


def grid_times(model: Transformer, cluster: Cluster, found: Sequence[Candidate] | None = None) -> dict[tuple[int, int, int], float]:
    """Seconds of the fastest configuration of each grid that fits, by closed forms; infinity if none fits.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    found : sequence of (float, float, Configuration), optional
        Candidates of a search of all axes, whose context axis is counted as data here; by default, part 29's axes are searched.
    """
    if found is None:
        found = [(*estimate(model, cluster, c), c) for c in configurations(model, cluster)]
        times = {}
    else:
        times = {(one["tensor"], one["pipeline"], one["data"] * one["context"]): math.inf for one in grids(model, cluster)}
    for seconds, nbytes, c in found:
        grid = c.tensor, c.pipeline, c.data * c.context
        times[grid] = min(times.get(grid, math.inf), seconds if nbytes <= cluster.device.memory else math.inf)
    return times


def whole_run(step: Step, tokens: float, price: float | None = None) -> str:
    """Describe the cost of a run over this many tokens: days, GPU-days, and money, given the price of a GPU-hour."""
    days = tokens / step.tokens / 86400
    gpu_days = days * step.cluster.gpus
    money = f", {gpu_days * 24 * price:,.0f} at {price:g} per GPU-hour" if price else ""
    return f"{tokens / 1e9:,.4g} billion tokens: {days:,.1f} days, {gpu_days:,.0f} GPU-days{money}"


def render_html(
    model: Transformer,
    cluster: Cluster,
    steps: Sequence[Step],
    price: float | None = None,
    tokens: float | None = None,
    notes: tuple[Sequence[str], Sequence[str]] = ((), ()),
    found: Sequence[Candidate] | None = None,
) -> str:
    """Render the report as a single HTML page with all figures.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    steps : sequence of Step
    price, tokens : float, optional
    notes : (sequence of str, sequence of str)
        Why the first is the best, and what would change that.
    found : sequence of (float, float, Configuration), optional
        As in `grid_times`.
    """
    best = simulate(model, cluster, steps[0].configuration)
    title = f"{model.name} on {cluster.gpus} × {cluster.device.name}"
    facts = {
        "model": f"{model.parameters() / 1e9:.1f} billion parameters: {model.layers} layers of width {model.hidden}, {model.heads} heads",
        "step": f"{model.batch} texts of {model.sequence} tokens, {model.flop() / 1e15:,.0f} PFLOP",
        **dict(zip(HEADINGS, table_row(best), strict=True)),
    }
    if tokens:
        facts["run"] = whole_run(best, tokens, price)
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
    others = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in table_row(step)) + "</tr>" for step in steps)
    heads = "".join(f"<th>{name}</th>" for name in HEADINGS)
    named = {f"{i}: {wording.seconds(step.seconds)}": step for i, step in enumerate(steps, 1)}
    figures = {
        "All grids": pictures.grids(grid_times(model, cluster, found), "The fastest step of each grid, by closed forms"),
        "Memory": pictures.memory(named, "Memory of the fullest rank, by kind"),
        "The fastest": pictures.timeline(best, "A step"),
    }
    facts_of = "".join(
        f"<h2>{heading}</h2><ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"
        for heading, lines in zip(("Why the first", "What would change it"), notes, strict=True)
        if lines
    )
    drawn = ""
    for heading, picture in figures.items():
        data = base64.b64encode(picture.png()).decode()
        drawn += f'<h2>{heading}</h2><img alt="{html.escape(picture.text)}" src="data:image/png;base64,{data}">'
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
        f"<h1>{html.escape(title)}</h1><table>{rows}</table><h2>The best</h2><table><tr>{heads}</tr>{others}</table>{facts_of}{drawn}"
        "<p>Simulated times. For their accuracy, see <code>make validate</code>.</p></html>\n"
    )


def write_trace(step: Step, path: Path) -> None:
    """Write a step for Perfetto (ui.perfetto.dev): each pipeline rank's computation, communication and memory."""
    found: list[dict] = []
    for rank in range(step.configuration.pipeline):
        found.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"stage {rank}"}})
        for tid, name in enumerate(TRACE_ROWS):
            found.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": name}})
        for time, held in zip(*step.memory[rank], strict=True):
            found.append({"ph": "C", "name": "memory", "pid": rank, "tid": 0, "ts": float(time) * 1e6, "args": {"bytes": float(held)}})
    for e in step.events:
        what = f", chunk {e.chunk}" if step.configuration.interleave > 1 and e.chunk >= 0 else ""
        name = e.kind + (f" {e.micro_batch}" if e.micro_batch >= 0 else "") + what
        row = 1 if e.kind == "message" else 2 if e.kind in ("gradients", "weights") else 0
        found.append(dict(ph="X", name=name, cat=e.kind, pid=e.rank, tid=row, ts=e.start * 1e6, dur=(e.end - e.start) * 1e6))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": found, "displayTimeUnit": "ms"}))
