"""What all figures share: the palette, one colour a rank, and a picture that shows itself.

The colours are those of Okabe and Ito (2008), "Color universal design", which people with any
kind of colour vision can tell apart.
"""

from __future__ import annotations

import io

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8A8A8A")
_DARK = {"#0072B2", "#009E73", "#D55E00", "#8A8A8A"}  # white text is readable on these
INK, PALE = "#222222", "#EEEEEE"


def color(rank: int) -> str:
    """The colour of a rank."""
    return COLORS[rank % len(COLORS)]


def ink_on(background: str) -> str:
    """The colour of text on a background."""
    return "white" if background in _DARK else INK


class Picture:
    """A drawn figure that shows itself in a notebook.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
    text : str
        What it shows, in words, for those who cannot see it.
    """

    def __init__(self, figure, text: str):
        self.figure, self.text = figure, text

    def png(self, dpi: int = 130) -> bytes:
        """The figure as a PNG file."""
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
    """A matplotlib figure with a title, and its axes in a row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12, color=INK)
    return figure, figure.subplots(1, columns, squeeze=False, **kwargs)[0]
