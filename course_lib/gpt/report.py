"""Report of a run: one HTML page that contains all its figures and needs no network."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass

from course_lib import plots
from course_lib.gpt.settings import Settings
from course_lib.utils import wording

H100_FLOPS, ASSUMED_MFU = 989e12, 0.4  # FLOP/s in 16 bits, dense (NVIDIA's data sheet), and the share of it that a good program reaches

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; vertical-align: top; }
pre { background: #f4f4f4; padding: .8rem; overflow-x: auto; white-space: pre-wrap; } img { max-width: 100%; }
"""


@dataclass
class RunResults:
    """Results of a run.

    Attributes
    ----------
    settings : Settings
    text : str
        Description of the training text.
    parameters : int
        Number of parameters of the whole model.
    losses : list of float
        Loss of each step.
    rate : float
        Tokens per second.
    samples : dict of str to str
        Generated text, by when it was generated.
    moved : list of dict of str to float
        For each rank, bytes sent per step, by axis.
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
    """FLOP of training on one token.

    6 for each parameter that the token passes through (only one of several experts), and 12 per block for each number of the attention
    (Chowdhery et al., 2022, "PaLM", appendix B).
    """
    s = results.settings
    idle = max(s.experts - 1, 0) * s.depth * 2 * s.width * 2 * s.width  # two matrices per idle expert
    return 6 * (results.parameters - idle) + 12 * s.depth * s.width * s.length


def draw_figures(results: RunResults) -> dict[str, plots.Picture]:
    """Draw the figures of a run, by heading."""
    s, ranks = results.settings, range(len(results.held))
    found = {"Loss": plots.losses({"": results.losses}, f"Training loss, {s.name}")}
    if s.mesh.size > 1:
        found["The grid"] = plots.groups(s.mesh, s.name)
        axes = sorted({axis for rank in results.moved for axis in rank}, key=list(s.mesh.shape).index)
        found["Bytes by axis"] = plots.stacked(
            {f"rank {r}": {axis: results.moved[r].get(axis, 0.0) for axis in axes} for r in ranks}, "Bytes that each rank sends per step"
        )
    found["Memory by kind"] = plots.memory({f"rank {r}": results.held[r] for r in ranks}, "Memory of each rank in a step, by kind")
    return found


def summary(results: RunResults) -> dict[str, str]:
    """Summarize the results in words."""
    s, flop = results.settings, flops_per_token(results)
    tokens = s.batch * s.length
    took = len(results.losses) * tokens * flop / (s.mesh.size * H100_FLOPS * ASSUMED_MFU)
    return {
        "grid": f"{s.name} ({s.mesh.size} rank{'s' if s.mesh.size > 1 else ''})",
        "model": f"{results.parameters:,} parameters: {s.depth} blocks of width {s.width}, {s.heads} heads, {s.length} positions",
        "text": results.text,
        "steps": f"{len(results.losses)}, each of {tokens:,} tokens; micro-batches per data parallel rank: {s.micro_batches}",
        "loss": f"{results.losses[0]:.3f} to {results.losses[-1]:.3f}",
        "speed": f"{results.rate:,.0f} tokens/s, {results.rate * flop / 1e9:.1f} GFLOP/s" if results.rate else "no step taken",
        "on GPUs": f"estimate: {s.mesh.size} × H100 would compute these steps in {wording.seconds(took)}, "
        f"at {ASSUMED_MFU:.0%} of "
        f"{H100_FLOPS / 1e12:.0f} TFLOP/s, not counting communication",
    }


def render_html(results: RunResults) -> str:
    """Render the report as HTML."""
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in summary(results).items())
    samples = "".join(f"<h3>{html.escape(when)}</h3><pre>{html.escape(text)}</pre>" for when, text in results.samples.items())
    figures = ""
    for heading, picture in draw_figures(results).items():
        data = base64.b64encode(picture.png()).decode()
        figures += f'<h2>{heading}</h2><img alt="{html.escape(picture.text)}" src="data:image/png;base64,{data}">'
    title = html.escape(f"A GPT on {results.settings.name}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><table>{rows}</table><h2>Samples</h2>{samples}{figures}</html>\n"
    )
