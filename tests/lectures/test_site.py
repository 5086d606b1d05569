"""The web site: built of two parts with all that a run gave, and looked at in a real browser, also on a phone."""

import fcntl
import functools
import html
import http.server
import importlib
import inspect
import posixpath
import re
import shutil
import threading

import nbformat
import pytest

from docs import build as site
from docs import links, offline
from grading.authoring import build
from grading.paths import NOTEBOOKS, ROOT, parts
from lectures import talk

CHROMIUM = shutil.which("chromium")
PARTS = ["06_megatron_backward", "16_training_step"]


@pytest.fixture(scope="session")
def built(tmp_path_factory, worker_id):
    """The site, of two parts; all workers have the same one."""
    base = tmp_path_factory.getbasetemp()
    base = base if worker_id == "master" else base.parent
    with pytest.MonkeyPatch.context() as patch, (base / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first one builds it
        if not (base / "built").exists():
            leaders = base / "leaderboard.html"
            leaders.write_text("<p>who leads</p>")
            patch.setattr(site, "parts", lambda: PARTS)
            patch.setattr(site, "LEADERBOARD", leaders)
            site.site(out=base / "site")
            (base / "built").touch()
    return base / "site" / "site"


def test_exercises_have_their_gaps_and_figures_their_texts(built):
    page = (built / "parts" / "06_megatron_backward.html").read_text()
    assert "raise NotImplementedError" in plain(page) and "BEGIN HIDDEN" not in page
    light, dark = (re.findall(f'<img class="only-{theme}"[^>]*alt="([^"]+)"', page) for theme in ("light", "dark"))
    assert light == dark and len(light) >= 4 and all(len(text) > 30 for text in light)
    assert links.broken_links(built) == []


def plain(text):
    """Text as a person reads it: without tags, and with one blank where there are several."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", text)))


def test_no_page_has_a_line_of_a_solution_or_of_a_hidden_test(built):
    known = "\n".join(path.read_text() for path in [*(ROOT / "course_lib").rglob("*.py"), *NOTEBOOKS.rglob("*.ipynb")])
    known, secrets = plain(known.replace('\\"', '"')), set()
    for part in parts():  # a page must not have those of another part, either
        for cell in build.build(part).cells:
            for marked in re.findall(r"### BEGIN [^\n]*\n(.*?)### END", cell.source, re.DOTALL):
                secrets |= {line for line in map(plain, map(str.strip, marked.split("\n"))) if len(line) > 8 and line not in known}
    assert len(secrets) >= 600
    files = [path for path in built.rglob("*") if path.suffix in (".html", ".js", ".ipynb", ".txt", ".md") and "_static" not in path.parts]
    assert {"parts", "slides", "downloads"} <= {path.parent.name for path in files} or "_downloads" in str(files)
    for path in files:
        text = path.read_text()
        shown = plain(text)
        assert not [line for line in secrets if line in shown or line in text], path


def test_the_page_takes_nothing_but_outputs_from_a_solved_notebook(built):
    done = talk.solved(PARTS[0])
    for cell in done.cells:
        cell.metadata.pop("course", None)  # who is an exercise is forgotten
    assert "return grad_x" not in nbformat.writes(site.page(PARTS[0], done, False)).split("Returns")[-1]
    done.cells[2].source += "# not made of this"
    with pytest.raises(site.SiteError, match="make release first"):
        site.page(PARTS[0], done, False)


def test_the_leaderboard_is_there_if_there_is_one(built):
    assert '<a href="leaderboard.html">' in (built / "index.html").read_text() and "who leads" in (built / "leaderboard.html").read_text()


def test_the_first_page_has_cells_with_their_outputs_and_pictures_of_the_paths(built):
    page = (built / "index.html").read_text()
    assert "I am even" in page and "rank 4 has finished the cell without it" in plain(page)
    assert page.count('src="_images/') >= 5 and page.count("only-dark") >= 1 and "{{" not in page
    assert "Author name not set" not in page


def test_the_slides_stand_alone(built):
    for part in PARTS:
        page = (built / "slides" / f"{part}.html").read_text()
        assert not re.search(r"""<(script|link|img)[^>]*(src|href)=["']?(https?:)?//""", page)
        assert "Reveal.initialize" in page and page.count("data:image/png") >= 4
        assert page.count("<section") >= len(talk.slides(talk.solved(part)))


def test_a_second_build_runs_no_notebook_and_where_a_slide_begins_changes_nothing(built, tmp_path, monkeypatch):
    shutil.copytree(built.parent, tmp_path / "site")
    monkeypatch.setattr(site, "parts", lambda: PARTS)
    monkeypatch.setattr(site, "run", lambda *_: pytest.fail("a notebook is run again"))
    solved = talk.solved
    monkeypatch.setattr(talk, "solved", lambda part: marked(solved(part)))
    assert site.site(out=tmp_path / "site").exists()


def marked(notebook):
    for cell in notebook.cells:
        cell.metadata["slideshow"] = {"slide_type": "slide"}
    return notebook


def test_a_figure_without_a_text_is_refused():
    cell = nbformat.v4.new_code_cell("draw()", outputs=[nbformat.v4.new_output("display_data", {"image/png": "eA=="})])
    with pytest.raises(site.SiteError, match="shows a figure without an alt text"):
        site.describe(cell)


def test_a_notebook_that_does_not_run_is_named(monkeypatch, tmp_path):
    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0", id="divide")])
    monkeypatch.setattr(site.reference, "write", lambda folder: [])
    with pytest.raises(site.SiteError, match="01_a does not run: cell 'divide': ZeroDivisionError: division by zero"):
        site.run(broken, "01_a")


def test_links_that_lead_nowhere_and_silent_pictures_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<p id="x"></p><a href="b.html#y">1</a><a href="#x">2</a><a href="c.html">3</a><img src="d.png">')
    (tmp_path / "b.html").write_text(
        '<a href="a.html#z">1</a><a href="https://example.org">2</a><p id="y"></p><img alt="one" src="a.html">'
    )
    (tmp_path / "c").mkdir()
    (tmp_path.parent / "out.html").write_text("")
    (tmp_path / "c" / "d.html").write_text(
        '<a href="../../out.html">1</a><a href="/etc/passwd">2</a><a href="file:///etc">3</a><img alt=" ">'
    )
    others = ["c/d.html: an image without alt text: ", "c/d.html: ../../out.html", "c/d.html: /etc/passwd", "c/d.html: file:///etc"]
    assert links.broken_links(tmp_path) == [
        *["a.html: an image without alt text: d.png", "a.html: c.html", "a.html: d.png", "b.html: a.html#z"],
        *others,
    ]


def test_slides_lead_to_other_parts_slides():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("[16](16_a.ipynb) and [it](17_b.ipynb#see-it)")])
    page = offline.slides(notebook, "18_c")
    assert 'href="16_a.html"' in page and 'href="17_b.html"' in page and ".ipynb" not in page


def test_a_script_cannot_end_its_own_element():
    assert "</script" not in offline._closed("a </script> b")


def test_what_lessons_import_of_the_library_stands_in_its_pages(built):
    from sphinx.util.inventory import InventoryFile

    with (built / "objects.inv").open("rb") as file:
        found = {name for kind, names in InventoryFile.load(file, "", posixpath.join).items() if kind.startswith("py:") for name in names}
    missing = set()
    for part in site.parts():
        text = "\n".join(cell.source for cell in build.build(part).cells if cell.cell_type == "code")
        for package, names in re.findall(r"^from (course_lib[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
            for name in (name.split()[0] for name in names.split(",")):
                thing = getattr(importlib.import_module(package), name, None) or importlib.import_module(f"{package}.{name}")
                if inspect.isclass(thing) or inspect.isfunction(thing):
                    missing |= set() if any(entry.endswith(f".{name}") for entry in found) else {f"{package}.{name}"}
                elif inspect.ismodule(thing) and not any(entry.startswith(f"{thing.__name__}.") for entry in found):
                    missing.add(thing.__name__)
    assert missing <= {"course_lib.utils.progress", "course_lib.utils.wording"}, missing


if CHROMIUM:  # without it there is nothing to look with; conftest.py says so

    @pytest.fixture(scope="module")
    def browser():
        from playwright.sync_api import sync_playwright

        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-quic"])
            yield browser
            browser.close()

    @pytest.fixture(scope="module")
    def served(built):
        """The site under a folder of a static server."""

        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(built.parent)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{built.name}"
        server.shutdown()

    @pytest.mark.parametrize("where", ["file", "server"])
    def test_pages_show_formulas_without_a_network_and_fit_a_phone(built, served, browser, where):
        page = browser.new_page(viewport={"width": 390, "height": 800})
        failed, asked = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("requestfailed", lambda request: failed.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        start = built.as_uri() if where == "file" else served
        for name in ("index.html", "parts/06_megatron_backward.html", "api/course_lib.traffic.html"):
            page.goto(f"{start}/{name}")
            page.wait_for_timeout(500)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{name} scrolls sideways"
            assert page.inner_text("h1")
        assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:", served[: served.rindex("/")]))], asked
        page.goto(f"{start}/parts/06_megatron_backward.html")
        page.wait_for_selector("mjx-container svg", state="attached", timeout=20_000)
        assert not [url for url in failed if where == "server" or not url.startswith("http")], failed
        page.close()

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_a_figure_fits_the_theme(built, browser, theme):
        page = browser.new_page(color_scheme=theme)
        page.goto(f"{built.as_uri()}/parts/{PARTS[0]}.html")
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        seen = """images => images.filter(image => image.checkVisibility()).map(image => {
          const boxes = [image, image.closest(".output")].map(box => getComputedStyle(box));
          return [image.className, ...boxes.map(style => style.backgroundColor), boxes[0].filter];
        })"""
        figures = page.locator(".cell_output img").evaluate_all(seen)
        assert len(figures) >= 4 and {name for name, *_ in figures} == {f"only-{theme}"}
        clear = "rgba(0, 0, 0, 0)"
        assert theme == "light" or all(styles == [clear, clear, "none"] for _, *styles in figures), figures
        page.close()

    @pytest.mark.parametrize("width", [1280, 1440])
    def test_code_is_not_cut_at_the_right(built, browser, width):
        page = browser.new_page(viewport={"width": width, "height": 900})
        for name in ("index", "students", "instructors", "developers", *(f"parts/{part}" for part in PARTS)):
            page.goto(f"{built.as_uri()}/{name}.html")
            cut = "nodes => nodes.filter(n => n.offsetParent && n.scrollWidth > n.clientWidth + 1).map(n => n.textContent)"
            assert not page.locator(".bd-article pre").evaluate_all(cut), name
        page.goto(f"{built.as_uri()}/parts/{PARTS[0]}.html")
        columns = """nodes => {
          const span = document.createElement("span");
          span.textContent = "x".repeat(88);
          nodes[0].append(span);
          return [span.offsetHeight, parseFloat(getComputedStyle(nodes[0]).fontSize)];
        }"""
        height, size = page.locator(".bd-article .cell_input pre").evaluate_all(columns)
        assert height < 2 * size, "88 columns of code take two lines"
        page.close()

    def test_search_finds_a_part(served, browser):
        page = browser.new_page()
        page.goto(f"{served}/search.html?q=all-reduce")
        page.locator("ul.search li a", has_text="Megatron").first.wait_for(timeout=20_000)  # results come one by one
        page.close()
