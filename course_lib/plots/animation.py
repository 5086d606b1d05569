"""Animated figures: a slider with a play button if there is a kernel, otherwise a still picture."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from course_lib.plots.figures import INK, Picture, ink_on, new_figure, on_slides, tone

FRAME_INTERVAL_MS = 900  # milliseconds between frames


class Animation:
    """Frames of a figure, shown one at a time.

    Parameters
    ----------
    draw : callable
        Draws the frame of a given number, a `Picture`; called when the frame is shown.
    frames : int
        Number of frames.
    still : Picture
        Replaces the animation in print, on a static page, and for readers who cannot see it.
    """

    def __init__(self, draw: Callable[[int], Picture], frames: int, still: Picture):
        self.frame, self.frames, self.still = cache(draw), frames, still

    def widget(self):
        """Build the slider, the button and the figure as an ipywidgets widget."""
        import ipywidgets

        play = ipywidgets.Play(min=0, max=self.frames - 1, interval=FRAME_INTERVAL_MS, description="play", show_repeat=False)
        slider = ipywidgets.IntSlider(min=0, max=self.frames - 1, description="step", continuous_update=False, readout=False)
        image = ipywidgets.HTML(self._image(0))  # ipywidgets.Image has no text for readers who cannot see it

        def show(change) -> None:
            image.value = self._image(change["new"])

        slider.observe(show, "value")
        ipywidgets.jslink((play, "value"), (slider, "value"))
        return ipywidgets.VBox([ipywidgets.HBox([play, slider]), image])

    def _image(self, number: int) -> str:
        """Return a frame as HTML, with its text."""
        picture = self.frame(number)
        if not on_slides():
            return picture.html()
        data, sizes = picture._repr_mimebundle_()
        source = f"data:image/png;base64,{base64.b64encode(data['image/png']).decode()}"
        size = " ".join(f'{name}="{value}"' for name, value in sizes["image/png"].items())
        return f'<img class="widget-image" src="{source}" alt="{html.escape(picture.text)}" {size} style="max-width: 100%; height: auto">'

    def _repr_mimebundle_(self, **options) -> tuple[dict, dict]:
        data, sizes = self.still._repr_mimebundle_(**options)
        try:
            moving = self.widget()._repr_mimebundle_()
        except ImportError:  # without ipywidgets, show the still picture
            moving = {}
        return {**moving, **data}, sizes

    def __repr__(self) -> str:
        return self.still.text


def ring(values: Sequence[np.ndarray], counts: Sequence[np.ndarray], title: str) -> Animation:
    """Animate an all-reduce in a ring, step by step.

    Parameters
    ----------
    values : sequence of numpy.ndarray
        Values of each of n ranks, ``(2 n - 1, n)``: initially, and after each step; see `collectives.ring`.
    counts : sequence of numpy.ndarray
        The same for arrays of ones: the number of ranks summed in each piece.
    title : str
        Title of the figure.

    Returns
    -------
    Animation
    """
    n = len(values)

    def draw(step: int) -> Picture:
        kind = "at the start" if not step else "add the received piece" if step < n else "copy the received piece"
        figure, (axes,) = new_figure(1.8 + 0.62 * n, 1.1 + 0.42 * n, f"{title}\nstep {step} of {2 * n - 2}: {kind}")
        axes.set(xlim=(-1.5, n), ylim=(n, -0.8))
        axes.axis("off")
        axes.text(-0.2, -0.4, "piece", ha="right", va="center", fontsize=9, color=INK)
        for piece in range(n):
            axes.text(piece + 0.5, -0.4, piece, ha="center", va="center", fontsize=9, color=INK)
        for rank in range(n):
            axes.text(-0.2, rank + 0.5, f"rank {rank}", ha="right", va="center", fontsize=9, color=INK)
            for piece in range(n):
                _cell(axes, piece, rank, values[rank][step][piece], counts[rank][step][piece] / n, _received_piece(rank, step, n) == piece)
        done = sum(int(np.sum(c[step] == n)) for c in counts)
        return Picture(figure, f"{title}, step {step} of {2 * n - 2}: {done} of {n * n} pieces are complete sums.")

    still = draw(n - 1)
    half = f"after {n - 1} steps each rank has one complete sum, and after {2 * n - 2} all of them"
    return Animation(draw, 2 * n - 1, Picture(still.figure, f"{title}: each rank sends one piece to the next in each step; {half}."))


def _received_piece(rank: int, step: int, n: int) -> int | None:
    """Number of the piece that a rank received in a step."""
    if not step:
        return None
    return (rank - step) % n if step < n else (rank - (step - n)) % n


def _cell(axes, x: int, y: int, value: float, part: float, came: bool) -> None:
    from matplotlib.patches import Rectangle

    shade = tone(part / 2)  # the stronger the more ranks are summed in it
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=shade, edgecolor="white", linewidth=1.5, in_layout=False))
    if came:
        axes.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, fill=False, edgecolor=INK, linewidth=2))
    axes.text(x + 0.5, y + 0.5, f"{value:g}", ha="center", va="center", fontsize=10, color=ink_on(shade), in_layout=False)
