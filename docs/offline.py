"""Slides of a part as one self-contained page: no network, no server, no other file."""

from __future__ import annotations

import copy
import importlib.util
import re
import shutil
from pathlib import Path

from nbformat import NotebookNode


def _static(package: str, *inside: str) -> Path:
    """Return the path of files that a Python package brings along."""
    found = importlib.util.find_spec(package)
    return Path(found.submodule_search_locations[0]).joinpath(*inside)


def reveal() -> Path:
    """Return the folder of reveal.js, from sphinx-revealjs."""
    return _static("sphinx_revealjs", "_static", "revealjs")


def mathjax() -> Path:
    """Return MathJax's script, from sphinx-mathjax-offline; the SVG output has its fonts in the script."""
    return _static("sphinx-mathjax-offline", "static", "mathjax") / "tex-svg.js"


def put_mathjax(folder: Path) -> None:
    """Copy MathJax's single file for the site's pages."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tex-svg.js").exists():
        shutil.copyfile(mathjax(), folder / "tex-svg.js")


REVEAL_SETUP = """
Reveal.initialize({
  hash: true, transition: "none", slideNumber: "c/t", center: false, width: 1280, height: 720, margin: 0.04, plugins: [RevealNotes]
});
"""
STYLE = """
.reveal { font-size: 24px; }
.reveal h1, .reveal h2, .reveal h3 { text-transform: none; }
.reveal h1 { font-size: 1.8em; }
.reveal h2 { font-size: 1.5em; }
.reveal .slides section { text-align: left; height: 100%; overflow-y: auto; }
.reveal .slides > section { overflow: hidden; }
.reveal img { max-height: 560px; max-width: 100%; height: auto; width: auto; margin: 0; }
.reveal .slides > section:first-child > section:first-child img { max-height: 320px; }
.reveal table { font-size: 0.9em; }
:root { --jp-content-font-size1: 24px; --jp-code-font-size: 20px; --jp-cell-prompt-width: 0px; }
"""


def slides(notebook: NotebookNode, part: str) -> str:
    """Render the slides of an executed notebook as a self-contained HTML page.

    Raises
    ------
    ValueError
        nbconvert's pages have changed: something in them would still come from the network.
    """
    from nbconvert import SlidesExporter

    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.metadata.get("jupyter", {}).get("source_hidden"):  # folded in the notebook; a page cannot unfold it
            cell.metadata["transient"] = {"remove_source": True}
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data.pop("text/html", None)  # the variants for light and dark pages; slides are light
    _begin_with_a_picture(notebook)
    page, _ = SlidesExporter().from_notebook_node(notebook, resources={"metadata": {"name": part}})
    there = reveal()
    styles = [there / "dist" / "reveal.css", there / "dist" / "theme" / "white.css"]
    scripts = [there / "dist" / "reveal.js", there / "plugin" / "notes" / "notes.js"]
    page = re.sub(
        r"<script[^>]* src=[^>]*>\s*</script>|<script type=\"text/x-mathjax-config.*?</script>|<link [^>]*href=[^>]*>", "", page, flags=re.S
    )
    page = re.sub(r"<script>\s*require\(.*?</script>", "", page, flags=re.S)
    page = re.sub(r"<script type=\"module\">.*?</script>", "", page, flags=re.S)
    page = re.sub(r'href="(\w+)\.ipynb(#[^"]*)?"', r'href="\1.html"', page)  # a link to another part leads to its slides
    head = "".join(f"<style>{_fonts_away(css.read_text())}</style>" for css in styles) + f"<style>{STYLE}</style>"
    head += f"<script>MathJax = {{tex: {{inlineMath: [['$', '$']]}}}}</script><script>{_closed(mathjax().read_text())}</script>"
    foot = "".join(f"<script>{_closed(path.read_text())}</script>" for path in scripts) + f"<script>{REVEAL_SETUP}</script>"
    page = page.replace("</head>", head + "</head>", 1)
    place = page.rindex("</html>")
    page = page[:place] + foot + page[place:]
    left = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']?https?:[^>]*>", page)
    if left:
        raise ValueError(f"the slides of {part} would load {left[0]}.")
    return page


def _begin_with_a_picture(notebook: NotebookNode) -> None:
    """Repeat the first figure on the title slide, if that has none."""
    drawn = [cell for cell in notebook.cells if any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))]
    begins = [i for i, cell in enumerate(notebook.cells) if cell.metadata.get("slideshow", {}).get("slide_type") == "slide"]
    if drawn and len(begins) > 1 and not any(cell in drawn for cell in notebook.cells[: begins[1]]):
        picture = copy.deepcopy(drawn[0])
        picture.id, picture.metadata = "picture-of-the-title", NotebookNode(transient={"remove_source": True}, slideshow=NotebookNode())
        picture.outputs = [output for output in picture.outputs if "image/png" in output.get("data", {})]
        notebook.cells.insert(begins[1], picture)


def _fonts_away(css: str) -> str:
    """Remove a theme's own fonts, which are other files; the browser's serve as well."""
    return re.sub(r"@import [^;]*;|@font-face *{[^}]*}", "", css)


def _closed(script: str) -> str:
    """Escape a script so that it cannot end the element that it is in."""
    return script.replace("</script", "<\\/script")
