"""Common parts of all figures: the palette, one colour per rank, and a picture that displays itself.

What a colour, a tone and a hatch mean is the same in all figures; part 00 says it, see `legend`. The colours are those of Okabe and
Ito (2008), "Color universal design", which are distinguishable with any kind of colour vision.
"""

from __future__ import annotations

import io
import os
import textwrap
from functools import cache

from course_lib.plots import themes

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8A8A8A")
INK, PALE = "#222222", "#EEEEEE"  # PALE: not held, or idle
RED = "#FF0000"  # wrong, or lost
ON_COLOR = ("#161616", "#FDFDFD")  # text on a colour, the same in all themes
MISSING = "////"  # hatch over the background: waiting, a summand without the others, dropped, not possible
WORK_COLORS = {  # spans of these names
    "forward": "#56B4E9",
    "recompute": "#CC79A7",
    "backward": "#E69F00",
    "update": "#009E73",
    "weight grad": "#F0E442",
}
COMPUTING = "#CFCFCF"  # without a name, as in a trace
SPAN_COLOR = "#6E6E6E"  # spans of other names, and transfers without a group
MEMORY_STYLES = {  # tone and pattern of what is in a device's memory
    "weights": ("#333333", ""),
    "parameters": ("#333333", ""),
    "gradients": ("#777777", ""),
    "optimizer state": ("#777777", "xx"),
    "activations": ("#BBBBBB", ""),
    "communication buffers": ("#BBBBBB", ".."),
}
FIGURE_STYLE_ENV = "COURSE_FIGURES"  # environment variable: "slides" if figures are drawn for slides, otherwise unset


def color(rank: int) -> str:
    """Colour of a rank."""
    return COLORS[rank % len(COLORS)]


@cache
def ink_on(background: str) -> str:
    """Colour of text on a background: of the two that there are, the one that is easier to read in both themes."""
    background = themes.PAPER if background == "none" else background
    inks = ("#000000", "#FFFFFF") if themes.is_grey(background).all() else ON_COLOR
    return max(inks, key=lambda ink: themes.least_contrast(ink, background))


def tone(strength: float) -> str:
    """Grey for an amount, 0 to 1: the more, the farther from the background. The greys in the middle, on which text is hard to read, are
    left out.
    """
    grey = 222 - 136 * strength if strength < 0.5 else 115 - 126 * (strength - 0.5)
    return "#" + f"{round(grey):02X}" * 3


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
        """Render the figure as PNG, for a light page."""
        return self._render("png", dpi, "white")

    def _render(self, file_format: str, dpi: int, background: str, **options: object) -> bytes:
        if on_slides():
            _enlarge(self.figure, min_font_size(self.figure, self.share))
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format=file_format, dpi=dpi, bbox_inches="tight", facecolor=background, **options)
        return buffer.getvalue()

    def html(self, dpi: int = 130) -> str:
        """Render the figure as HTML that fits light and dark pages."""
        from PIL import Image

        small = {"pil_kwargs": {"lossless": True, "method": 2}}
        light = self._render("webp", dpi, "white", **small)
        with themes.dark(self.figure):
            dark = self._render("webp", dpi, "none", **small)
        return themes.as_html(light, dark, self.text, *_shown_size(*Image.open(io.BytesIO(light)).size))

    def _repr_mimebundle_(self, **_) -> tuple[dict, dict]:
        data = self.png()
        width, height = _shown_size(*(int.from_bytes(data[i : i + 4], "big") for i in (16, 20)))
        bundle = {"image/png": data, "text/plain": self.text}  # for print, feedback and slides
        return bundle if on_slides() else {"text/html": self.html(), **bundle}, {"image/png": {"width": width, "height": height}}

    def __repr__(self) -> str:
        return self.text


def _shown_size(width: int, height: int) -> tuple[int, int]:
    """Width and height in which a page shows an image of this many pixels."""
    return round(width * 0.72), round(height * 0.72)


def new_figure(width: float, height: float, title: str, columns: int = 1, rows: int = 1, **kwargs):
    """Make a matplotlib figure with a title, and its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12, color=INK)
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs).ravel()


def legend(title: str = "How to read the pictures of this course") -> Picture:
    """Draw what colours, tones and hatches mean in all figures."""
    from matplotlib.patches import Rectangle

    patterns = [*MEMORY_STYLES.values()][1:]
    groups = [fill for fill in COLORS if fill not in WORK_COLORS.values()][:3]
    hatched = [{"edgecolor": edge, "hatch": MISSING, "linewidth": 0} for edge in (SPAN_COLOR, COLORS[0], RED)]
    lines = (
        ("one color for each rank: what is in it belongs to that rank", [(color(r), {}, str(r)) for r in range(len(COLORS))]),
        ("over time, each row is a rank, and a color is a kind of work", [(fill, {}, kind) for kind, fill in WORK_COLORS.items()]),
        ("other computing", [(COMPUTING, {}, "")]),
        ("transfer: grey, or a color for each group of ranks", [(fill, {}, "") for fill in (SPAN_COLOR, *groups)]),
        (
            "something is missing: a rank waits, a sum lacks summands,\na token is dropped, a plan does not fit into memory",
            [("white", style, "") for style in hatched],
        ),
        ("nothing there: not held, or idle", [(PALE, {}, "")]),
        ("red: wrong, or lost", [("white", {"edgecolor": RED, "linewidth": 2}, "")]),
        ("greys and patterns: kinds of bytes; the figure says which", [(fill, {"hatch": hatch}, "") for fill, hatch in patterns]),
        ("the stronger a grey, the more: more summed, or faster", [(tone(i / 4), {}, "") for i in range(5)]),
        ("an arrow over time: a message, from when it is sent to when it is received", []),
    )
    figure, (axes,) = new_figure(9.6, 4.1, title)
    axes.set(xlim=(0, 17.4), ylim=(1.25 * len(lines), -0.1))
    axes.axis("off")
    for i, (text, samples) in enumerate(lines):
        width = 8.7 / len(samples) if samples and samples[0][2].isalpha() else 1.0
        for k, (fill, style, name) in enumerate(samples):
            place = (width * k + 0.05, 1.25 * i + 0.05)
            axes.add_patch(Rectangle(place, width - 0.1, 0.9, **{"facecolor": fill, "edgecolor": "white"} | style))
            axes.text(width * (k + 0.5), 1.25 * i + 0.5, name, ha="center", va="center", fontsize=9, color=ink_on(fill))
        axes.text(8.8, 1.25 * i + 0.5, text, ha="left", va="center", fontsize=10, color=INK)
    arrow = {"arrowstyle": "->", "color": INK, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(2.05, 1.25 * i + 0.95), xytext=(0.05, 1.25 * i + 0.05), arrowprops=arrow)
    return Picture(figure, f"{title}: {'; '.join(text for text, _ in lines)}.".replace("\n", " "))
