"""Scene: frames with a sentence each, as an animation, or as a still picture of several frames with their sentences as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from course_lib.plots.animation import Animation
from course_lib.plots.figures import INK, PALE, Picture, ink_on, min_font_size, on_slides
from course_lib.trace.recorder import Event
from course_lib.trace.timeline import Trace
from course_lib.utils import wording

TYPE_SIZE = 11  # points, of a frame's sentence
MAX_SENTENCES = 8  # of a text; of more frames, it has those in the picture
LINE_HEIGHT, LETTER_WIDTH = 1.2, 0.58  # of a line of type, as shares of its size


class Frame(NamedTuple):
    """A frame: its name, which may be empty, and the sentence that says what happens."""

    name: str
    text: str


def animate(
    title: str, frames: Sequence[Frame], paint: Callable[[object, int], None], size: tuple[float, float], keys: Sequence[int], summary: str
) -> Animation:
    """Make an animation of frames.

    Parameters
    ----------
    title : str
    frames : sequence of Frame
    paint : callable
        Draws the frame of a given number on a matplotlib figure or subfigure.
    size : (float, float)
        Width and height in inches of what `paint` draws.
    keys : sequence of int
        Numbers of the frames in the still picture.
    summary : str
        First sentence of the still picture's text.
    """
    width, height = size
    type_size = max(TYPE_SIZE, min_font_size(_figure(width, height + 1.2)))
    letters = int(72 * width / (LETTER_WIDTH * max(type_size, 12)))
    places = [f"{i + 1} of {len(frames)}" for i in range(len(frames))]
    heads = [f"{place}, {f.name}" if f.name else place for place, f in zip(places, frames, strict=True)]
    lines = [textwrap.wrap(f"{head}: {f.text}", letters, break_on_hyphens=False) for head, f in zip(heads, frames, strict=True)]
    most = max(map(len, lines))

    def draw(number: int) -> Picture:
        head = "\n".join([title, *lines[number], *[""] * (most - len(lines[number]))])  # equally many lines: nothing jumps
        figure = _figure(width, height + 0.1 + LINE_HEIGHT * type_size / 72 * (most + 1), head, TYPE_SIZE)
        paint(figure, number)
        return Picture(figure, f"{title}. {' '.join(lines[number])}")

    said = range(len(frames)) if len(frames) <= MAX_SENTENCES else keys
    shown = " ".join(" ".join(lines[i]) for i in said)
    text = f"{title}. {summary} {shown}"
    if on_slides():  # type of a slide's size does not fit into several frames
        return Animation(draw, len(frames), Picture(draw(keys[len(keys) // 2]).figure, text))
    columns = 1 if width > 7.5 else 2
    scale = 4.8 * 2 / (width * columns) if columns == 2 else 1.0
    rows = math.ceil(len(keys) / columns)
    still = _figure(width * columns * scale, 0.4 + rows * (height * scale + 0.3), title, 12)
    panels = still.subfigures(rows, columns, squeeze=False).flat
    for panel, key in zip(panels, keys, strict=False):
        panel.suptitle(heads[key], fontsize=10, color=INK)
        paint(panel, key)
    return Animation(draw, len(frames), Picture(still, text))


def _figure(width: float, height: float, head: str = "", size: int = 12):
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(head, fontsize=size, color=INK)
    whole = Rectangle((0, 0), 1, 1, transform=figure.transFigure, facecolor="none", edgecolor="none")  # all frames are of one size
    figure.add_artist(whole)
    return figure


def only(traces: Trace | Sequence[Trace], scene: str) -> Trace:
    """Return the one trace of a list.

    Raises
    ------
    ValueError
        There is none, or there are several, or events are missing.
    """
    found = [traces] if isinstance(traces, Trace) else list(traces)
    if len(found) != 1 or found[0].dropped:
        what = "a trace of which the first events are missing" if len(found) == 1 else f"{len(found)} traces"
        raise ValueError(
            f"{scene} draws one step: it needs one complete trace; got {what}. Have the ranks do the step alone, in one call, "
            "inside `with ranks.trace(show=False) as traces:`."
        )
    return found[0]


def label(event: Event, name: str) -> int:
    """Return a label of a span, a whole number: 2 for "micro_batch" in ``span("forward", micro_batch=2)``."""
    said = dict(part.rsplit(" ", 1) for part in event.of.split(", "))
    return int(said[name.replace("_", " ")])


def box(
    axes, x: float, y: float, width: float, height: float, fill: str, text: str = "", size: float = 9, edge: str = "white", **style
) -> None:
    """Draw a rectangle with text in it."""
    from matplotlib.patches import Rectangle

    options = {"linewidth": 1.2, "in_layout": False} | style
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, **options))
    if text:
        ink = INK if fill in ("none", "white", PALE) else ink_on(fill)
        axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, color=ink, in_layout=False, zorder=4)


def arrow(axes, begin: tuple[float, float], end: tuple[float, float], color: str, width: float = 2.0, bend: float = 0.0) -> None:
    """Draw an arrow."""
    style = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0, "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", xy=end, xytext=begin, arrowprops=style, zorder=3)


def milliseconds(seconds: float) -> str:
    """Format a moment of a trace."""
    return wording.seconds(float(f"{seconds:.3g}"))


def span_text(begin: float, end: float) -> str:
    """Format an interval of a trace."""
    return f"{milliseconds(begin)} to {milliseconds(end)}"
