"""Figures in a dark theme: greys change places, colours stay, and a page shows the variant that fits its background.

No single tone of text can be read on white and in JupyterLab's dark theme: its contrast is at most 4.4 on one of them, and 4.5 is what
readers need (WCAG 2.2, success criterion 1.4.3). So a figure comes in two variants.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

PAPER, DARK_PAPER = "#FFFFFF", "#111111"  # white, and the background of JupyterLab's dark theme
DARK_INK = 238  # grey value of black in the dark theme, 0 to 255
UNCHANGED = {"#8A8A8A", "#161616", "#FDFDFD"}  # greys that stay: a rank's colour, and the two colours of text on a colour
# JupyterLab, the site (whose theme gives the classes their names), VS Code
DARK_PAGES = ":is([data-jp-theme-light=false],[data-theme=dark],.vscode-dark)"
STYLE = f"{DARK_PAGES} .only-light{{display:none}}{DARK_PAGES} .only-dark{{display:inline!important}}"


def contrast(one: object, other: object) -> float:
    """Contrast of two colours, 1 to 21, as defined by WCAG 2.2.

    >>> contrast("#FFFFFF", "#000000")
    21.0
    """
    low, high = sorted(_luminance(color) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: object) -> float:
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def is_grey(color: object) -> np.ndarray:
    """Tell for each of these colours if it is a grey that changes in the dark theme."""
    from matplotlib.colors import to_rgba_array

    rgb = to_rgba_array(color)[:, :3]
    kept = to_rgba_array([*UNCHANGED])[:, None, :3]
    return (np.ptp(rgb, axis=1) < 0.5 / 255) & (np.abs(rgb - kept).max(axis=2) > 0.5 / 255).all(axis=0)


def in_dark(color: object) -> np.ndarray:
    """Colour of the dark variant: greys from black to white become light grey to nearly black; colours are the same.

    Parameters
    ----------
    color : object
        One or several colours, as matplotlib takes them.

    Returns
    -------
    numpy.ndarray
        Red, green, blue and opacity, 0 to 1: ``(n, 4)``.

    >>> (in_dark("#FFFFFF") * 255).round().astype(int).tolist()
    [[17, 17, 17, 255]]
    """
    from matplotlib.colors import to_rgba_array

    rgba = to_rgba_array(color)
    grey, paper = is_grey(rgba), to_rgba_array(DARK_PAPER)[0, 0]
    rgba[grey, :3] = DARK_INK / 255 - rgba[grey, :3] * (DARK_INK / 255 - paper)
    return rgba


def least_contrast(one: object, other: object) -> float:
    """Contrast of two colours in the theme in which it is lower."""
    return min(contrast(one, other), contrast(in_dark(one)[0], in_dark(other)[0]))


@contextmanager
def dark(figure) -> Iterator[None]:
    """Give a figure its colours of the dark theme, in the layout of its last drawing; afterwards it has those that it had."""
    undo, layout = [], figure.get_layout_engine()
    backgrounds = {id(axes.patch) for axes in figure.axes if _luminance(axes.get_facecolor()[:3]) == 1.0}
    for artist in _artists(figure):
        # All are read before any changes: a marker has its line's colour unless it has one of its own.
        for name, before in [(name, getattr(artist, f"get_{name}")()) for name in _properties(artist)]:
            change, found = getattr(artist, f"set_{name}"), in_dark(before)
            undo.append((change, before))
            change("none" if id(artist) in backgrounds and name == "facecolor" else found if len(found) != 1 else tuple(found[0]))
    figure.set_layout_engine("none")
    try:
        yield
    finally:
        figure.set_layout_engine(layout)
        for change, before in reversed(undo):
            change(before)


def _artists(figure) -> Iterator:
    for artist in figure.findobj():
        yield artist
        parts = getattr(artist, "arrow_patch", None), artist.get_bbox_patch() if hasattr(artist, "get_bbox_patch") else None
        yield from (part for part in parts if part is not None)


def _properties(artist) -> tuple[str, ...]:
    """Names of an artist's colours."""
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text

    kinds = {Text: ("color",), Line2D: ("color", "markerfacecolor", "markeredgecolor")}
    kinds |= {Patch: ("facecolor", "edgecolor"), Collection: ("facecolor", "edgecolor")}
    return next((names for kind, names in kinds.items() if isinstance(artist, kind)), ())


def as_html(light: bytes, dark: bytes, text: str, width: int, height: int) -> str:
    """Return a figure as HTML: both variants as WebP, of which the page shows one.

    Where styles are not allowed, as in a notebook that is not trusted, it shows the light one, which has a background of its own.
    """
    size = f'alt="{html.escape(text)}" width="{width}" height="{height}"'
    images = ""
    for data, attributes in ((light, 'class="only-light"'), (dark, 'class="only-dark" style="display:none"')):
        images += f'<img {attributes} {size} src="data:image/webp;base64,{base64.b64encode(data).decode()}">'
    return f"<style>{STYLE}</style>{images}"
