"""One page about a run, with all pictures in it: it needs no network and no other file."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass

from course_lib import plots, wording
from course_lib.gpt.settings import Settings

H100_FLOPS, ASSUMED_MFU = 989e12, 0.4  # FLOP a second, 16 bits, dense: NVIDIA's data sheet; and what a good program gets of it

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; vertical-align: top; }
pre { background: #f4f4f4; padding: .8rem; overflow-x: auto; white-space: pre-wrap; } img { max-width: 100%; }
"""


@dataclass
class RunResults:
    """What a run has given.

    Attributes
    ----------
    settings : Settings
    text : str
        What it has learnt from.
    parameters : int
        Of the whole model.
    losses : list of float
        By step.
    rate : float
        Tokens a second.
    samples : dict of str to str
        What it writes, by when.
    moved : list of dict of str to float
        For each rank, bytes sent in a step by axis.
    held : list of dict of str to int
        For each rank, bytes by kind.
    """

    settings: Settings
    text: str
    parameters: int
    losses: list[float]
    rate: float
    samples: dict[str, str]
    moved: list[dict[str, float]]
    held: list[dict[str, int]]


def flops_per_token(results: RunResults) -> float:
    """FLOP of training on one token: 6 for each parameter that it meets, which of several experts is one; and 12 a block for each number of
    the attention (Chowdhery et al., 2022, "PaLM", B)."""
    s = results.settings
    idle = max(s.experts - 1, 0) * s.depth * 2 * s.width * 2 * s.width  # two matrices each
    return 6 * (results.parameters - idle) + 12 * s.depth * s.width * s.length


def draw_figures(results: RunResults) -> dict[str, plots.Picture]:
    """The figures of a run, by their headings."""
    s, ranks = results.settings, range(len(results.held))
    found = {"Loss": plots.losses({"": results.losses}, f"Training loss, {s.name}")}
    if s.mesh.size > 1:
        found["The grid"] = plots.groups(s.mesh, s.name)
        axes = sorted({axis for rank in results.moved for axis in rank}, key=list(s.mesh.shape).index)
        found["Bytes by axis"] = plots.stacked(
            {f"rank {r}": {axis: results.moved[r].get(axis, 0.0) for axis in axes} for r in ranks}, "Bytes that a rank sends in a step"
        )
    found["Memory by kind"] = plots.memory({f"rank {r}": results.held[r] for r in ranks}, "Memory of each rank in a step, by kind")
    return found


def summary(results: RunResults) -> dict[str, str]:
    """The figures in words."""
    s, flop = results.settings, flops_per_token(results)
    tokens = s.batch * s.length
    took = len(results.losses) * tokens * flop / (s.mesh.size * H100_FLOPS * ASSUMED_MFU)
    return {
        "grid": f"{s.name} ({s.mesh.size} rank{'s' if s.mesh.size > 1 else ''})",
        "model": f"{results.parameters:,} parameters: {s.depth} blocks of width {s.width}, {s.heads} heads, {s.length} positions",
        "text": results.text,
        "steps": f"{len(results.losses)}, each of {tokens:,} tokens; micro-batches of a data parallel rank: {s.micro_batches}",
        "loss": f"{results.losses[0]:.3f} to {results.losses[-1]:.3f}",
        "speed": f"{results.rate:,.0f} tokens a second, {results.rate * flop / 1e9:.1f} GFLOP a second"
        if results.rate
        else "no step taken",
        "on GPUs": f"an estimate: {s.mesh.size} of the kind H100 would compute these steps in {wording.seconds(took)}, "
        f"at {ASSUMED_MFU:.0%} of "
        f"{H100_FLOPS / 1e12:.0f} TFLOP a second; messages come on top",
    }


def render_html(results: RunResults) -> str:
    """The report, as HTML."""
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in summary(results).items())
    samples = "".join(f"<h3>{html.escape(when)}</h3><pre>{html.escape(text)}</pre>" for when, text in results.samples.items())
    figures = ""
    for heading, picture in draw_figures(results).items():
        data = base64.b64encode(picture.png()).decode()
        figures += f'<h2>{heading}</h2><img alt="{html.escape(picture.text)}" src="data:image/png;base64,{data}">'
    title = html.escape(f"A GPT on {results.settings.name}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><table>{rows}</table><h2>What it writes</h2>{samples}{figures}</html>\n"
    )
