"""`make site`: the course as static pages, with all figures from real runs.

Each solved notebook runs once, on real ranks; its outputs are kept in `docs/_build/cache/` and reused for the same
notebook source, as long as course_lib is unchanged. The pages show the exercises with their gaps; with
``--solutions`` (for the lecturer only), solved.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from course_lib.tools.lab import KERNELSPEC, LANGUAGE_INFO
from docs import links, offline
from grading.authoring import build, reference
from grading.paths import GRADING, NOTEBOOKS, ROOT, parts
from grading.submission.execute import ipc_kernel_config
from lectures import talk

DOCS = Path(__file__).resolve().parent
OUTPUT_FOLDER = DOCS / "_build"
LEADERBOARD = GRADING / "leaderboard.html"  # if `make leaderboard` has written it
PAGES = {  # written by hand: where each lies, and its name on the site
    **{
        f"docs/{name}.md": name
        for name in ("students", "lecturers", "instructors", "developers", "slurm", "containers", "jupyterhub", "credits")
    },
    "grading/README.md": "grading",
    "CONTRIBUTING.md": "contributing",
}
CELL_TIMEOUT_SECONDS = 600  # seconds for a cell


class SiteError(RuntimeError):
    """The site cannot be built; the message says why."""


def executed(part: str, cache_folder: Path) -> NotebookNode:
    """Return the solved notebook of a part with its outputs: from the cache, or from a run.

    Raises
    ------
    SiteError
        A cell raised unexpectedly.
    """
    notebook = talk.solved(part)
    loads = functions() if any("students" in cell.source for cell in notebook.cells) else ""
    return with_outputs(notebook, part, cache_folder, loads)


def with_outputs(notebook: NotebookNode, name: str, cache_folder: Path, loads: str = "") -> NotebookNode:
    """The same notebook with the outputs of a run, which is done now unless the cache has it."""
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    cache = get_cache(str(cache_folder))
    try:
        _, found = cache.merge_match_into_notebook(cache_form(notebook, loads))
    except KeyError:
        began = time.monotonic()
        found = cache_form(run(copy.deepcopy(notebook), name), loads)
        found.metadata = notebook.metadata  # a run adds to it, and the cache compares it
        cache.cache_notebook_bundle(CacheBundleIn(found, f"{name}.ipynb"), check_validity=False, overwrite=True)
        print(f"{name}: ran in {time.monotonic() - began:.0f} s", flush=True)
    for cell, ran in zip(notebook.cells, found.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
    return notebook


def functions() -> str:
    """Return a key that changes with the solved functions that a part may load."""
    with tempfile.TemporaryDirectory() as folder:
        return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(reference.write(folder)))).hexdigest()[:16]


def cache_form(notebook: NotebookNode, loads: str = "") -> NotebookNode:
    """Return a notebook in the form that the cache compares: the sources of its cells, and what it loads.

    Cell metadata are left out: where a slide begins does not change the outputs.
    """
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode()
    notebook.cells[0].metadata["loads"] = loads
    return notebook


def run(notebook: NotebookNode, part: str) -> NotebookNode:
    """Run a notebook on real ranks, in a folder with what earlier parts save."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    with tempfile.TemporaryDirectory() as folder:
        reference.write(folder)
        where = {"metadata": {"path": folder}}
        client = NotebookClient(
            notebook, timeout=CELL_TIMEOUT_SECONDS, kernel_name="python3", resources=where, config=ipc_kernel_config(folder)
        )
        try:
            return client.execute()
        except CellExecutionError as error:
            failed = next((c.id for c in notebook.cells for o in c.get("outputs", []) if o.output_type == "error"), "?")
            raise SiteError(f"{part} does not run: cell {failed!r}: {error.ename}: {error.evalue}") from None
        except CellTimeoutError:
            raise SiteError(f"{part} does not run: one of its cells takes more than {CELL_TIMEOUT_SECONDS} seconds.") from None
        except DeadKernelError:
            raise SiteError(f"{part} does not run: its kernel died. A usual cause: too little memory.") from None


def environment_key() -> str:
    """Return a key that changes with what notebooks run on."""
    found = hashlib.sha256()
    for path in [ROOT / "constraints.txt", *sorted((ROOT / "course_lib").rglob("*.py"))]:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def page(part: str, done: NotebookNode, solutions: bool) -> NotebookNode:
    """Return a part as the site shows it.

    Raises
    ------
    SiteError
        The students' notebook does not match the source.
    """
    notebook = nbformat.from_dict(done) if solutions else as_students_see_it(part, done)
    for cell in notebook.cells:
        if "jupyter" in cell.metadata:
            title = cell.source.split("\n")[0].removeprefix("%%px").strip("# ")
            cell.metadata["tags"] = ["hide-input"]
            cell.metadata["mystnb"] = {"code_prompt_show": title, "code_prompt_hide": title}
        describe(cell)
    return notebook


def as_students_see_it(part: str, done: NotebookNode) -> NotebookNode:
    """Return the students' own notebook with the outputs of a run, so that no mistake here can reveal a solution."""
    notebook = nbformat.read(NOTEBOOKS / part / f"{part}.ipynb", as_version=4)
    graded = [cell.metadata.get("nbgrader", {}).get("grade") or build.is_about_grading(cell) for cell in notebook.cells]
    notebook.cells = [cell for cell, left_out in zip(notebook.cells, graded, strict=True) if not left_out]
    ran = {cell.id: cell for cell in done.cells}
    for cell in notebook.cells:
        gap = cell.metadata.get("nbgrader", {}).get("solution")
        if cell.id not in ran or not (gap or cell.source == ran[cell.id].source):
            raise SiteError(f"notebooks/{part} does not match solutions/{part} (cell {cell.id!r}): run make release first.")
        if cell.cell_type == "code" and not gap:
            cell.outputs, cell.execution_count = ran[cell.id].outputs, ran[cell.id].execution_count
    return notebook


def with_links(notebook: NotebookNode, part: str) -> NotebookNode:
    """Add links to the notebook and to its slides below the title."""
    title, _, rest = notebook.cells[0].source.partition("\n")
    here = f'*{{download}}`The notebook <../downloads/{part}.ipynb>` to work in; <a href="../slides/{part}.html">the slides</a>.*'
    notebook.cells[0].source = f"{title}\n\n{here}\n{rest}"
    return notebook


def describe(cell: NotebookNode) -> None:
    """Give every figure an alt text: the description that the notebook has for those who cannot see it."""
    figures = [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    for output in figures:
        words = re.sub(r"\s+", " ", output["data"].get("text/plain", "")).strip()
        if not words or len(figures) > 1:  # a page has one text for all figures of a cell
            raise SiteError(f"cell {cell.id!r} shows a figure without an alt text{', or several' * (len(figures) > 1)}.")
        cell.metadata.setdefault("mystnb", {})["image"] = {"alt": words}  # for the page
        output.setdefault("metadata", {}).setdefault("image/png", {})["alt"] = words  # for the slides


def sources(folder: Path, cache: Path, solutions: bool) -> dict[str, NotebookNode]:
    """Write what Sphinx reads; return the executed notebooks, by part."""
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    (folder / "downloads").mkdir(exist_ok=True)
    (folder / "index.md").unlink(missing_ok=True)  # what the first page was before it had outputs
    write_if_changed(nbformat.writes(first_page(cache)), folder / "index.ipynb")
    for source, name in PAGES.items():
        write_if_changed(with_site_links((ROOT / source).read_text(), source), folder / f"{name}.md")
    for picture in DOCS.glob("*.png"):
        shutil.copyfile(picture, folder / picture.name)
    write_if_changed(
        (DOCS / "api.md").read_text().replace("{{ modules }}", "\n".join(f"api/{name}" for name in modules())), folder / "api.md"
    )
    (folder / "api").mkdir(exist_ok=True)
    for old in (folder / "api").glob("*.md"):
        if old.stem not in modules():
            old.unlink()  # of a module that was renamed
    for name in modules():
        write_if_changed(f"# {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n```\n", folder / "api" / f"{name}.md")
    done = {}
    print(f"{len(parts())} parts; those that have changed run first. All of them took ten minutes on two busy cores.", flush=True)
    for part in parts():
        done[part] = executed(part, cache)
        write_if_changed(nbformat.writes(with_links(page(part, done[part], solutions), part)), folder / "parts" / f"{part}.ipynb")
        write_if_changed((NOTEBOOKS / part / f"{part}.ipynb").read_text(), folder / "downloads" / f"{part}.ipynb")
    return done


def first_page(cache: Path) -> NotebookNode:
    """The site's first page: `index.md` with the outputs of its cells, and README's tables."""
    leaders = '<a href="leaderboard.html">The leaderboard of part 20.</a>' if LEADERBOARD.exists() else ""
    text = with_site_links((DOCS / "index.md").read_text(), "docs/index.md")
    notebook = jupytext.reads(text, fmt="md:myst")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": LANGUAGE_INFO})
    for number, cell in enumerate(notebook.cells):
        cell.id = f"index-{number}"
    notebook = with_outputs(notebook, "index", cache)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            found = cell.source.replace("{{ paths }}", paths()).replace("{{ parts }}", table())
            cell.source = found.replace("{{ leaderboard }}", leaders)
        else:
            describe(cell)
    return notebook


def with_site_links(text: str, source: str) -> str:
    """A page written for the repository, with links to the site's own pages.

    Raises
    ------
    SiteError
        A link leads to a file that is not on the site.
    """
    known = {file: f"{name}.md" for file, name in PAGES.items()} | {"docs/api.md": "api.md", "README.md": "index.ipynb"}

    def on_site(link: re.Match) -> str:
        if re.match(r"https?:|#", link[1]):
            return link[0]
        path, _, fragment = link[1].partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if file not in known:
            raise SiteError(f"{source} links to {link[1]}, which is not on the site.")
        return f"]({known[file]}{'#' * bool(fragment)}{fragment})"

    return re.sub(r"\]\(([^()\s]+)\)", on_site, text)


def modules() -> list[str]:
    """Return the modules of course_lib that the notebooks import."""
    text = "\n".join("".join(cell["source"]) for path in sorted(NOTEBOOKS.glob("*/*.ipynb")) for cell in nbformat.read(path, 4).cells)
    found = set()
    for module, names in re.findall(r"^\s*from (course_lib[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
        names = [name.split()[0] for name in names.split(",")]
        submodules = {name for name in names if _path(f"{module}.{name}")}
        found |= {f"{module}.{name}" for name in submodules} | ({module} if submodules != set(names) else set())
        found |= {where for name in names if (where := _lazily_from(module, name))}
    return sorted(found)


def _lazily_from(module: str, name: str) -> str:
    """The module from which a package imports a name only when it is asked for; "" for other names."""
    found = re.search(rf"^    from (course_lib[\w.]*) import .*\b{name}\b", _path(module).read_text(), re.MULTILINE)
    return found[1] if found and "TYPE_CHECKING" in _path(module).read_text() else ""


def _path(name: str) -> Path | None:
    """The file of a module; None where there is none of this name."""
    path = ROOT.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def table() -> str:
    """Return README's table of the parts, with links to the site's own pages."""
    rows = re.sub(r"\(notebooks/\w+/(\w+)\.ipynb\)", r"(parts/\1.ipynb)", _readme_table("part")).split("\n")
    return "\n".join([*rows[:2], *(row for row in rows[2:] if any(f"(parts/{part}.ipynb)" in row for part in parts()))])


def paths() -> str:
    """README's table of the paths, with its pictures."""
    return re.sub(r'<img src="docs/([\w.]+)"[^>]* alt="([^"]+)">', r"![\2](\1)", _readme_table("path"))


def _readme_table(first: str) -> str:
    """The table of README whose first column has this name."""
    return re.search(rf"^\| {first} \|.*?\n\n", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0].strip()


def write_if_changed(text: str, path: Path) -> None:
    """Write a file only if its content changes, since Sphinx reads changed files again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def site(solutions: bool = False, out: Path = OUTPUT_FOLDER) -> Path:
    """Build the site.

    Returns
    -------
    Path
        Its start page.

    Raises
    ------
    SiteError
        A notebook does not run, Sphinx has a warning, or a link leads nowhere.
    """
    _fresh(parts())
    cache, name = out / "cache" / environment_key(), "with-solutions" if solutions else "site"
    for old in (out / "cache").glob("*"):
        if old != cache:
            shutil.rmtree(old)
    cache.mkdir(parents=True, exist_ok=True)
    for old in [p for folder in (name, f"{name}-source") for p in (out / folder).glob("[psd]*s/*")]:
        if old.parent.name in ("parts", "slides", "downloads") and old.stem not in parts():
            old.unlink()  # of a part that was renamed
    done = sources(out / f"{name}-source", cache, solutions)
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2", "-b", "html", "-c", str(DOCS)]
    html = out / name
    ended = subprocess.run([*words, "-d", str(out / f"{name}-doctrees"), str(out / f"{name}-source"), str(html)], cwd=ROOT)
    if ended.returncode:
        raise SiteError("Sphinx reports warnings, see above.")
    offline.put_mathjax(html / "_static" / "mathjax")
    if LEADERBOARD.exists():
        shutil.copyfile(LEADERBOARD, html / "leaderboard.html")
    else:
        (html / "leaderboard.html").unlink(missing_ok=True)
    (html / "slides").mkdir(exist_ok=True)
    for part, notebook in done.items():
        write_if_changed(offline.slides(page(part, notebook, solutions), part), html / "slides" / f"{part}.html")
    broken = links.broken_links(html)
    if broken:
        raise SiteError("Broken links:\n" + "\n".join(broken))
    return html / "index.html"


def check(part: str, out: Path = OUTPUT_FOLDER) -> Path:
    """Run one part, and write its slides as for the site, to check that it can be a page.

    Raises
    ------
    SiteError
        It does not run, its notebook does not match its source, or a figure has no alt text.
    """
    _fresh([part])
    (cache := out / "cache" / environment_key()).mkdir(parents=True, exist_ok=True)
    html = offline.slides(page(part, executed(part, cache), False), part)
    (folder := out / "checked").mkdir(exist_ok=True)
    write_if_changed(html, folder / f"{part}.html")
    return folder / f"{part}.html"


def _fresh(some: list[str]) -> None:
    """Raise SiteError, before anything runs, if a students' notebook does not match its source."""
    for part in some:
        as_students_see_it(part, talk.solved(part))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--solutions", action="store_true", help="show the exercises solved")
    parser.add_argument("--part", help="only check that this part can be a page")
    options, began = parser.parse_args(), time.monotonic()
    try:
        first = check(options.part) if options.part else site(options.solutions)
    except SiteError as error:
        sys.exit(f"{error}")
    checked = f"{options.part} is a part: it can be handed out, graded and shown. " if options.part else ""
    print(f"{checked}{first.relative_to(ROOT)}, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
