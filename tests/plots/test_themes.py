"""Figures in light and dark themes: all text has a contrast of 4.5 and more, colours keep their meaning, and nothing is a white box."""

import base64
import io
import re
import shutil

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text
from PIL import Image

from course_lib import plots
from course_lib.plots import figures, themes
from tests.lectures.test_font_sizes import PICTURES

CHROMIUM = shutil.which("chromium")
LEAST = 4.5  # for text, by WCAG 2.2
DARK_PAGES = ("#111111", "#121212", "#14181E", "#1F1F1F")  # JupyterLab, the site's theme and the one it is made from, VS Code


@pytest.mark.parametrize("fill", [*figures.COLORS, *figures.WORK_COLORS.values(), *(figures.tone(i / 50) for i in range(51)), figures.PALE])
def test_text_on_a_color_can_be_read_in_both_themes(fill):
    assert themes.least_contrast(figures.ink_on(fill), fill) >= LEAST


@pytest.mark.parametrize("name", PICTURES)
def test_other_text_can_be_read_in_both_themes(name):
    figure = PICTURES[name]().figure
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    inks = {to_hex(text.get_color()).upper() for text in texts} - {*figures.ON_COLOR, "#FFFFFF"}  # those are checked above
    assert inks
    for ink in inks:
        assert themes.contrast(ink, "white") >= LEAST, ink
        assert min(themes.contrast(themes.in_dark(ink)[0], page) for page in DARK_PAGES) >= LEAST, ink


def test_no_tone_of_text_fits_both_pages():
    """Two variants are needed, as no single one would do."""
    best = max(min(themes.contrast(f"#{i:02x}{i:02x}{i:02x}", page) for page in ("white", "#111111")) for i in range(256))
    assert best < LEAST


def test_colors_stay_and_greys_change_places():
    for color in (*figures.COLORS, *figures.WORK_COLORS.values(), figures.RED, *figures.ON_COLOR):
        assert to_hex(themes.in_dark(color)[0]).upper() == color
    greys = [themes.in_dark(f"#{i:02x}{i:02x}{i:02x}")[0, 0] for i in (0, 34, 119, 238, 255)]
    assert greys == sorted(greys, reverse=True)
    assert themes.contrast(themes.in_dark(figures.PALE)[0], "#111111") == pytest.approx(themes.contrast(figures.PALE, "white"), rel=0.05)
    assert themes.in_dark((0.0, 0.0, 0.0, 0.25))[0, 3] == 0.25


def variants(picture):
    """The two images of a picture's HTML: what a light page shows, and what a dark one does."""
    found = re.findall(r'<img class="only-(light|dark)"[^>]*src="data:image/webp;base64,([^"]+)"', picture.html())
    return {name: np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA")).astype(int) for name, data in found}


@pytest.mark.parametrize("name", ["exchange", "holdings", "times against size", "four ranks", "products"])
def test_a_dark_page_shows_no_white_box(name):
    found = variants(PICTURES[name]())
    light, dark = found["light"], found["dark"]
    assert light.shape == pytest.approx(dark.shape, abs=2)
    assert (light[..., 3] == 255).all() and (light[0, 0, :3] == 255).all(), "the light one has its own background"
    white = (dark[..., :3].min(axis=2) > 245) & (dark[..., 3] == 255)
    assert (dark[0, :, 3] == 0).mean() > 0.5 and white.mean() < 0.01


def test_a_marker_has_its_lines_color_in_both_themes():
    picture = plots.lines({"a": [1, 2], "b": [2, 1]}, "Lines", "step", "loss")
    (axes,) = picture.figure.axes
    line = axes.plot([0, 1], [1, 1], "o-", color="#222222")[0]
    before = picture.png()
    with themes.dark(picture.figure):
        assert to_hex(line.get_color()) == to_hex(line.get_markerfacecolor()) == to_hex(themes.in_dark("#222222")[0])
    assert picture.png() == before, "afterwards, the figure is as it was"


def test_a_figure_is_html_for_pages_and_png_for_print_and_slides(monkeypatch):
    picture = plots.bars({"a": 1}, 'Bars of "a" & <b>', "bytes")
    data, _ = picture._repr_mimebundle_()
    assert set(data) == {"text/html", "image/png", "text/plain"}
    assert data["text/html"].count('alt="Bars of &quot;a&quot; &amp; &lt;b&gt;: a 1 B"') == 2
    assert data["text/html"].count('style="display:none"') == 1, "without the style sheet, it is the light one that shows"
    monkeypatch.setenv(figures.FIGURE_STYLE_ENV, "slides")
    assert set(picture._repr_mimebundle_()[0]) == {"image/png", "text/plain"}


def test_the_legend_says_each_meaning():
    text = figures.legend().text
    for word in ("rank", "over time", "transfer", "missing", "not held, or idle", "red", "kinds of bytes", "stronger"):
        assert word in text
    assert not {*figures.WORK_COLORS.values()} & {figures.RED, figures.PALE, figures.COMPUTING}


if CHROMIUM:  # without it there is no page to look at

    @pytest.mark.parametrize(
        ("page", "shown"),
        [
            ('<body data-jp-theme-light="true">', "light"),
            ('<body data-jp-theme-light="false">', "dark"),
            ('<body class="vscode-dark">', "dark"),
            ("<body>", "light"),
        ],
    )
    @pytest.mark.parametrize("trusted", [True, False])
    def test_a_page_shows_the_variant_of_its_theme(page, shown, trusted):
        """A front end that trusts an output applies its styles; otherwise the light one is there, with its background."""
        from playwright.sync_api import sync_playwright

        text = plots.bars({"a": 1}, "Bars", "bytes").html()
        text = text if trusted else re.sub("<style>.*?</style>", "", text)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-quic"])
            tab = browser.new_page()
            tab.set_content(f"<html>{page}{text}")
            seen = tab.locator("img").evaluate_all(
                "nodes => nodes.filter(n => n.checkVisibility()).map(n => [n.className, n.naturalWidth])"
            )
            browser.close()
        ((name, width),) = seen
        assert name == f"only-{shown if trusted else 'light'}" and width > 100
