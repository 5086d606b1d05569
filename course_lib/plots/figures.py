"""Common parts of all figures: the palette, one colour per rank, and a picture that displays itself.

The colours are those of Okabe and Ito (2008), "Color universal design", which are distinguishable with any kind of colour
vision.
"""

from __future__ import annotations

import io
import os
import textwrap

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8A8A8A")
_DARK = {"#0072B2", "#009E73", "#D55E00", "#8A8A8A"}  # white text is readable on these
INK, PALE = "#222222", "#EEEEEE"
ACTIVITY_COLORS = {  # activities of a rank
    "communication": "#777777",
    "forward": "#56B4E9",
    "recompute": "#CC79A7",
    "backward": "#E69F00",
    "update": "#009E73",
}
FIGURE_STYLE_ENV = "COURSE_FIGURES"  # environment variable: "slides" if figures are drawn for slides, otherwise unset


def color(rank: int) -> str:
    """Colour of a rank."""
    return COLORS[rank % len(COLORS)]


def ink_on(background: str) -> str:
    """Colour of text on a background."""
    return "white" if background in _DARK else INK


def on_slides() -> bool:
    """Tell whether figures are drawn for a lecture's slides."""
    return os.environ.get(FIGURE_STYLE_ENV) == "slides"


def slide_width(width: float, height: float) -> float:
    """Width in inches of a figure whose rows are times: on a slide the full width, which leaves room for larger type."""
    return max(width, 2.6 * height) if on_slides() else width


def min_font_size(figure, share: float = 1.0) -> float:
    """Smallest font size of a figure, in points: on a slide, the equivalent of 18 pt on a screen of 1920 by 1080 pixels.

    A slide shows a figure at the width of its text (or this share of it), and at least 0.58 of the screen's height, see
    `lectures/front`. 24 pixels are 18 pt; two more allow for what a long legend adds to the figure's size.
    """
    width, height = figure.get_size_inches()
    return 26 * 72 / min(1690 * share / width, 0.58 * 1080 / height) if on_slides() else 0.0


def _enlarge(figure, least: float) -> None:
    """Enlarge fonts to at least this size, and wrap a title that becomes too long."""
    from matplotlib.text import Text

    for text in figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_fontsize() < least):
        text.set_fontsize(least)
    size = max(least, 12)
    letters = int(72 * figure.get_size_inches()[0] / (0.58 * size))
    lines = [textwrap.fill(line, letters) for line in figure.get_suptitle().split("\n")]
    figure.suptitle("\n".join(lines), fontsize=size)


class Picture:
    """A figure that displays itself in a notebook.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
    text : str
        Description in words, for readers who cannot see the figure.
    share : float
        Share of a slide's width that it gets: 0.5 for two side by side.
    """

    share = 1.0

    def __init__(self, figure, text: str):
        self.figure, self.text = figure, text

    def png(self, dpi: int = 130) -> bytes:
        """Render the figure as PNG."""
        if on_slides():
            _enlarge(self.figure, min_font_size(self.figure, self.share))
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", facecolor="white")
        return buffer.getvalue()

    def _repr_mimebundle_(self, **_) -> tuple[dict, dict]:
        data = self.png()
        width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
        size = {"width": round(width * 0.72), "height": round(height * 0.72)}
        return {"image/png": data, "text/plain": self.text}, {"image/png": size}

    def __repr__(self) -> str:
        return self.text


def new_figure(width: float, height: float, title: str, columns: int = 1, **kwargs):
    """Make a matplotlib figure with a title, and its axes in a row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12, color=INK)
    return figure, figure.subplots(1, columns, squeeze=False, **kwargs)[0]
