"""The table behind the sliders of a plan, and what shows it: a page, a widget, and a short table where no script runs."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product

import numpy as np
import pytest
from browser import CHROMIUM, FLAGS

from course_lib.plots import figures, themes
from course_lib.sim import __main__ as command
from course_lib.sim.core.hardware import GIB, Link
from course_lib.sim.llm import pictures
from course_lib.sim.llm.cluster import A100_DEVICE, Cluster
from course_lib.sim.llm.configuration import Configuration, PlanError, problems
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.transformer import Transformer
from course_lib.sim.plan import explorer, report, search, table
from course_lib.sim.plan.space import configurations_of_grid

MODEL = Transformer("small", 6, 1024, 16, 2048, 1000, batch=24, fused=True, dropout=False, experts=4, top_k=1)
PLACE = Cluster(replace(A100_DEVICE, memory=1.0 * GIB), 8)


@pytest.fixture(scope="module")
def found():
    return table.build(MODEL, PLACE)


def drawn(found, count=8):
    """Keys of each kind: those that fit and those that do not, of the search's choices and plain; and the best ones."""
    kinds = {}
    for key, one in found.entries.items():
        kinds.setdefault((key[-1], one.fits), []).append(key)
    assert len(kinds) == 4, "each kind is there"
    random = np.random.default_rng()
    chosen = [some[i] for some in kinds.values() for i in random.choice(len(some), min(count, len(some)), replace=False)]
    return [*chosen, *found.best().values()]


def shape(key):
    return replace(MODEL, batch=key[0], sequence=key[1])


def test_entries_are_what_the_simulator_says(found):
    for key in drawn(found):
        one = found.entries[key]
        step = simulate(shape(key), PLACE, one.configuration)
        c = one.configuration
        assert (c.tensor, c.context, c.pipeline, c.data, c.expert) == key[2:7]
        assert (one.row, one.seconds, one.fits) == (report.table_row(step), step.seconds, step.fits), key
        assert one.memory == pictures.memory_by_kind(step) and sum(one.memory.values()) == pytest.approx(step.peak)
        assert sum(one.parts.values()) == pytest.approx(step.seconds) and min(one.parts.values()) >= 0.0
        if key[-1] == table.PLAIN:
            assert (c.micro_batch, c.recompute, c.interleave) == (1, "none", 1) and c.sharding <= 1


def test_the_choice_is_the_best_of_its_grid(found):
    """Compared with all configurations of the grid, simulated; the closed forms that select are a little off."""
    for key in (key for key in drawn(found, 3) if key[-1] == table.CHOSEN):
        one, grid = found.entries[key], dict(zip(table.GRID, key[2:6], strict=True))
        some = [c for c in configurations_of_grid(shape(key), PLACE, grid) if c.expert == key[6]]
        steps = [simulate(shape(key), PLACE, c, keep=False) for c in some]
        fitting = [step.seconds for step in steps if step.fits]
        assert one.fits == bool(fitting), key
        if fitting:
            assert min(fitting) <= one.seconds <= 1.02 * min(fitting), key
        else:
            assert sum(one.memory.values()) <= 1.02 * min(step.peak for step in steps), key


def test_the_best_of_a_batch_and_length_is_at_least_what_the_command_finds(found):
    best = found.best()
    for pair in ((MODEL.batch, MODEL.sequence), next(iter(best))):
        seconds = found.entries[best[pair]].seconds
        assert seconds <= search.best(shape(pair), PLACE, 1, whole=True)[0].seconds * 1.01
        assert seconds == min(one.seconds for key, one in found.entries.items() if key[:2] == pair and one.fits)
        assert best[pair][-1] == table.CHOSEN


def test_what_is_not_in_the_table_has_a_reason_by_the_planner(found):
    reasons = 0
    for key in product(*found.axes.values()):
        if key in found.entries:
            continue
        grid = dict(zip((*table.GRID, "expert"), key[2:7], strict=True))
        simple = Configuration(**grid, sequence_parallel=key[2] > 1, uneven=MODEL.layers % key[4] > 0)
        assert found.reason(key) == f"Not possible: {problems(shape(key), PLACE, simple)[0]}", key
        reasons += 1
    assert reasons and len({*found.impossible.values()}) > 3


def test_what_is_slow_and_long_is_not_simulated_and_says_so(found, monkeypatch):
    limit, own = 40, (MODEL.batch, MODEL.sequence)
    monkeypatch.setattr(table, "MAX_EVENTS_IF_SLOW", limit)
    monkeypatch.setattr(table, "SLOW", 1.2)
    fewer = table.build(MODEL, PLACE, *([n] for n in own))
    left_out = {key for key in fewer.impossible if len(key) == len(table.AXES)}
    fastest = fewer.entries[fewer.best()[own]].seconds
    assert {key[-1] for key in left_out} == {table.CHOSEN, table.PLAIN} and not left_out & {*fewer.entries}
    for key in left_out:
        c, said = found.entries[key].configuration, fewer.reason(key)
        events = int(re.match(r"Not simulated: ([\d,]+) forwards and backwards, and a step of about ", said).group(1).replace(",", ""))
        assert events > limit and found.entries[key].seconds > 1.15 * fastest
        if key[-1] == table.PLAIN:
            assert events == 2 * c.pipeline * c.micro_batches(MODEL)
    for key in {key for key in fewer.entries if key[-1] == table.PLAIN}:
        assert fewer.entries[key] == found.entries[key]


@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_the_bubble_is_that_of_the_closed_form(pipeline):
    """With links that take no time and equal stages: (p - 1) of the m + p - 1 slots of a micro-batch."""
    free = Link(float("inf"))
    place = Cluster(replace(A100_DEVICE, launch=0.0), pipeline, inside=free, network=free, overhead=0.0, spread=0.0)
    model = Transformer("equal", 8, 1024, 16, 2048, 1, batch=12)
    parts = table.parts(simulate(model, place, Configuration(pipeline=pipeline)))
    share = parts[table.WAITING] / (parts[table.WAITING] + parts[table.COMPUTING])
    assert share == pytest.approx((pipeline - 1) / (12 + pipeline - 1), rel=0.05)
    assert parts[table.MESSAGES] == parts[table.WITHIN_LAYERS] == parts[table.REPLICAS] == 0.0


def test_the_sentence_says_what_limits(found):
    best = found.best()
    for key in drawn(found):
        one, said = found.entries[key], found.limits(key, best.get(key[:2]))
        assert said.startswith("Fits" if one.fits else "Does not fit: at least" if key[-1] == table.CHOSEN else "Does not fit: ")
        assert f"{max(one.memory, key=one.memory.get)} {'is' if 'state' in said else 'are'} the largest part" in said
        if one.fits:
            beside = "The best" if key in best.values() or one.seconds == found.entries[best[key[:2]]].seconds else "slower than the best"
            assert f"{beside} for this batch and length." in said


def test_nothing_that_fits_is_an_error():
    with pytest.raises(PlanError, match=r"does not fit: all grids take at least [\d.]+ GiB"):
        table.build(MODEL, Cluster(replace(A100_DEVICE, memory=0.05 * GIB), 2), [4], [512])


class Loads(HTMLParser):
    """The files that a page loads, and its tags."""

    def __init__(self):
        super().__init__()
        self.loads, self.tags = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]


def test_the_page_is_one_file(found):
    shown = explorer.Explorer(found)
    page = shown.page()
    parser = Loads()
    parser.feed(page)
    assert not parser.loads and not re.search(r"https?://|url\(|@import|import\s*\(", page) and len(page) < 2_000_000
    assert parser.tags.count("script") == 2 and "noscript" in parser.tags and page.count("export") == 0
    data = json.loads(re.search(r'<script type="application/json" id="table">(.*?)</script>', page).group(1))
    assert data == json.loads(json.dumps(shown.data()))
    assert len(data["entries"]) == len(found.entries)


def test_names_cannot_end_the_script(found):
    evil = replace(found, model=replace(MODEL, name="</script><b>"))
    page = explorer.Explorer(evil).page()
    assert page.count("</script>") == 2 and "<b>" not in page


def test_the_widget_and_the_page_show_the_same(found, monkeypatch):
    shown = explorer.Explorer(found)
    widget = shown.widget()
    assert widget.data == shown.data() and widget.trait_metadata("data", "sync")
    assert "export default { render }" in str(widget._esm)
    assert "application/vnd.jupyter.widget-view+json" in shown._repr_mimebundle_()

    def missing():
        raise ImportError("anywidget")

    monkeypatch.setattr(explorer, "_widget_class", missing)
    bundle = shown._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    best = found.entries[found.best()[MODEL.batch, MODEL.sequence]]
    assert all(cell in bundle["text/plain"] and cell in bundle["text/html"] for cell in best.row)
    assert bundle["text/html"].count("<tr>") == 1 + len(found.axes["batch"]) * len(found.axes["sequence"])


def test_colours_differ_in_both_themes_or_have_another_pattern(found):
    data = explorer.Explorer(found).data()
    for styles in (data["parts"], data["kinds"]):
        for theme in (0, 1):
            looks = [(style[theme].lower(), style[2]) for style in styles.values()]
            assert len({*looks}) == len(looks)
    assert data["kinds"] == {kind: explorer._style(*figures.MEMORY_STYLES[kind]) for kind in data["kinds"]}
    assert all(themes.contrast(style[0], "white") >= 1.5 for style in data["parts"].values())


def test_the_command_writes_a_page(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(
        '[model]\nlayers = 4\nhidden = 512\nheads = 8\nsequence = 1024\nbatch = 16\nname = "tiny"\n[cluster]\ngpus = 4\ndevice = "a100"'
    )
    assert command.main(["plan", "--file", "run.toml", "--page", "a.html"]) == 0
    assert command.main(["plan", "--file", "run.toml", "--page"]) == 0
    assert "The page is a.html: " in capsys.readouterr().out
    assert (tmp_path / "a.html").read_text() == (tmp_path / "plan" / "page.html").read_text()
    assert "tiny on 4 × A100" in (tmp_path / "a.html").read_text() and len([*(tmp_path / "plan").iterdir()]) == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--page", "no/page.html"], "there is no folder no."),
        (["--page", "."], "--page must name a file in a folder that exists, such as page.html; . is a folder."),
        (["--page", "a.html", "--tokens", "1e12"], "--tokens is for the report, which --page replaces"),
        (["--page", "a.html", "--count", "2"], "--count is for the report"),
        (["--page", "a.html", "--out", "b"], "--out is a folder for the report, which --page replaces"),
        (["--page", "a.html", "--model", "2b"], "there is no model '2b'"),
    ],
)
def test_a_page_that_cannot_be_gets_a_sentence(words, problem, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "build", lambda *_, **__: pytest.fail("nothing is searched before"))
    assert command.main(["plan", "--model", "7b", "--gpus", "8", *words]) == 2
    assert problem in capsys.readouterr().err and not [*tmp_path.iterdir()]


if CHROMIUM:  # without it there is no page to look at

    def press(tab, axis, key, times):
        tab.focus(f"input[data-axis={axis}]")
        for _ in range(times):
            tab.keyboard.press(key)

    def choose(tab, found, key):
        """Move the sliders with the keyboard, the followed axis last."""
        sizes = dict(zip(table.AXES, key, strict=True))
        for axis in ("batch", "sequence", "tensor", "context", "pipeline", "expert", "data"):
            tab.focus(f"input[data-axis={axis}]")
            tab.keyboard.press("Home")
            for _ in range(found.axes[axis].index(sizes[axis])):
                tab.keyboard.press("ArrowRight")
        tab.check(f"input[value={key[-1]}]")

    def test_the_page_looks_up_what_the_sliders_say(found, tmp_path):
        from playwright.sync_api import sync_playwright

        (tmp_path / "page.html").write_text(explorer.Explorer(found).page(), encoding="utf-8")
        best, asked, errors = found.best(), [], []
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            tab = browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme="dark")
            tab.on("request", lambda request: asked.append(request.url))
            tab.on("pageerror", lambda error: errors.append(str(error)))
            tab.goto((tmp_path / "page.html").as_uri())
            start = best[MODEL.batch, MODEL.sequence]
            assert tab.inner_text(".tiles b >> nth=0") == found.entries[start].row[0]
            for key in drawn(found, 1)[:4]:
                choose(tab, found, key)
                one, said = found.entries[key], tab.locator(".tiles b").all_inner_texts()
                assert said[:2] == [*one.row[:2]] and said[3:] == [f"{one.row[2]} of 1 GiB", one.row[3]]
                assert said[2] == f"{100 * one.parts[table.WAITING] / one.seconds:.1f}%"
                assert tab.inner_text(".verdict")[2:] == found.limits(key, best.get(key[:2]))
                assert tab.inner_text("code >> nth=0") == one.row[4]
                assert tab.get_attribute("input[data-axis=batch]", "aria-valuetext") == f"{key[0]} texts per step"
            assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(238, 238, 238)", "the dark theme"
            press(tab, "pipeline", "Home", 1)
            press(tab, "tensor", "End", 1)
            press(tab, "data", "End", 1)
            choice = [int(text.split()[0].replace(",", "")) for text in tab.locator("output").all_inner_texts()]
            assert tab.inner_text(".verdict") == f"✗ {found.reason((*choice, table.CHOSEN))}"
            assert tab.locator(".tiles").is_hidden()
            tab.click("text=Best for this batch and length")
            assert tab.inner_text("code >> nth=0") == found.entries[best[tuple(choice[:2])]].row[4]
            tab.set_viewport_size({"width": 320, "height": 800})
            assert tab.evaluate("document.documentElement.scrollWidth") <= 320, "nothing to scroll sideways"
            plain = browser.new_context(java_script_enabled=False).new_page()
            plain.goto((tmp_path / "page.html").as_uri())
            assert plain.locator("noscript tr").count() == 1 + len(best) and plain.locator("noscript table").is_visible()
            browser.close()
        assert not errors and len(asked) == 1
