"""README and the pages it leads to: short, with links that lead somewhere, and a map of the code that leaves nothing out."""

import ast
import re

import pytest

from docs import build as site
from grading.authoring import build
from grading.paths import ROOT, parts

README = (ROOT / "README.md").read_text()
README_LINES = 110
HOUR = 60  # minutes
UNTIMED = {"20_custom_strategy": 2 * HOUR}  # its text says how long is typical, in words
PACKAGES = ("benchmarks", "docs", "lectures", "hub", "grading", "course_lib")


def test_readme_is_short_and_its_first_screen_has_a_picture_and_the_commands():
    lines = README.splitlines()
    assert len(lines) <= README_LINES
    assert not [line for line in lines if len(line) > 120 and not line.startswith(("| ", "!["))]
    first = "\n".join(lines[:40])
    assert all(word in first for word in ("docs/session.gif", "make lab ", "make test ", "cluster.start(8)", "%%px"))


@pytest.mark.parametrize("page", ["README.md", *site.PAGES])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^()\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    there = [link for link in links if not link.startswith(("http", "#"))]
    assert not [link for link in there if not ((ROOT / page).parent / link.partition("#")[0]).exists()]


def test_readme_leads_to_each_page_for_readers():
    pages = [page for page in site.PAGES if page.startswith("docs/")]
    assert not [page for page in pages if f"({page})" not in README]


def test_each_part_is_in_readme_with_its_ranks():
    for part in parts():
        (row,) = [line for line in README.splitlines() if f"(notebooks/{part}/{part}.ipynb)" in line]
        assert re.fullmatch(rf"\| \[{part[:2]} [^\]]+\]\([^)]+\) \| [^|]+ \| \d+ \| \d+ \|", row), row
        assert int(row.split(" | ")[2]) == build.build(part).metadata["course"]["ranks"], part


def test_the_hours_of_a_path_are_those_of_its_parts():
    minutes = {}
    for part in parts():
        found = re.search(r"About (\d+) minutes", build.build(part).cells[0].source)
        minutes[part[:2]] = int(found[1]) if found else UNTIMED[part]
    for row in re.findall(r"^\| \*\*.*", site.paths(), re.MULTILINE):
        numbers = re.search(r"parts? (.+?) \|", row)[1]
        own = [n for first, last in re.findall(r"(\d\d)(?: to (\d\d))?", numbers) for n in minutes if first <= n <= (last or first)]
        hours = sum(minutes[n] for n in own) / HOUR
        assert abs(int(row.split(" | ")[1]) - hours) <= 0.5, (row, hours)
    assert abs(int(re.search(r"together take about (\d+) hours", README)[1]) - sum(minutes.values()) / HOUR) <= 1


def folders(package):
    """The folders of a package that have modules, the package itself included."""
    return sorted({str(path.parent.relative_to(ROOT)) for path in (ROOT / package).rglob("__init__.py")})


def test_the_map_of_the_code_has_every_package_and_module_in_the_order_of_imports():
    text = (ROOT / "docs" / "developers.md").read_text()
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    wanted = [folder.removeprefix("course_lib/").removeprefix("grading/") + "/" for package in PACKAGES for folder in folders(package)]
    wanted += [f"{path.relative_to(ROOT)}/" for path in (ROOT / "tests").iterdir() if path.is_dir() and list(path.glob("test_*.py"))]
    assert not sorted(set(wanted) - set(named)), "docs/developers.md leaves these out"
    bases = [ROOT / base for base in ("", "course_lib", "grading")]
    gone = [name for name in named if name.endswith("/") and not any((base / name).exists() for base in bases)]
    assert not gone, "docs/developers.md has these, which are no more"
    for place, name in (("project/test_import_layers.py", "LAYERS"), ("grading/test_grading_layers.py", "GRADING_LAYERS")):
        layers = [set(layer) for layer in constant(ROOT / "tests" / place, name)]
        found = [{word.rstrip("/") for word in re.findall(r"`([^`]+)`", row)} for row in rows]
        assert [row for row in found if row in layers] == layers, f"the rows are those of {name} in tests/{place}, in its order"


def constant(path, name):
    """The value of a constant of a module."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"no {name} in {path}")


def test_a_link_that_leads_off_the_site_is_an_error():
    with pytest.raises(site.SiteError, match=r"docs/students.md links to ../hub/limits.py, which is not on the site"):
        site.with_site_links("[limits](../hub/limits.py)", "docs/students.md")
    text = "[a](../grading/README.md#grading), [b](slurm.md), [c](https://example.org/x.md), [d](#here)"
    assert site.with_site_links(text, "docs/x.md") == "[a](grading.md#grading), [b](slurm.md), [c](https://example.org/x.md), [d](#here)"
