"""A student's feedback page: one HTML file that needs no network, no JavaScript and no other file.

Formulas become MathML, which browsers draw themselves. The page is nbgrader's feedback with a template of our own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from latex2mathml.converter import convert
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbgrader.converters import GenerateFeedback
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from grading.authoring.build import kind_of
from grading.formatting import display_name, format_points

TEMPLATES = Path(__file__).resolve().parent / "templates"


@dataclass
class PageContext:
    """Data that a page shows beyond nbgrader's own.

    Attributes
    ----------
    part, name : str
        The student's name, or the id if the name is unknown.
    points, maximum, penalty : float
        As in grades.csv. No points if the part has none.
    tests : list of str
        Grade ids of all tests.
    dropped, by_hand : set of str
        Tests that do not count for this student, and those that a person must still grade.
    extra : dict of str to float
        Extra credit, by grade id.
    """

    part: str
    name: str
    points: float | None = None
    maximum: float = 0.0
    penalty: float = 0.0
    tests: list[str] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    by_hand: set[str] = field(default_factory=set)
    extra: dict[str, float] = field(default_factory=dict)


class FeedbackConverter(GenerateFeedback):
    """nbgrader's feedback with a template of our own and the data for it."""

    context: PageContext

    def init_single_notebook_resources(self, notebook_filename: str) -> dict:
        resources = super().init_single_notebook_resources(notebook_filename)
        resources["course"] = vars(self.context) | {"style": HtmlFormatter().get_style_defs(".highlight")}
        return resources


def configured(config: Config) -> Config:
    """Make `FeedbackConverter` use its template; `config` is changed in place, and returned."""
    config.HTMLExporter.template_name = "page"
    config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES)]
    config.HTMLExporter.filters = dict(markdown2html=markdown, kind=kind_of, readable=display_name, number=format_points, title_of=title_of)
    return config


def without_points(part: str, name: str, why: str) -> str:
    """Render the page of a student whose submission has no grade, with the reason."""
    folder = Environment(loader=FileSystemLoader(TEMPLATES / "page"))
    return folder.get_template("short.html.j2").render(part=part, name=name, why=why)


def title_of(source: str) -> str:
    """Return the title of a folded cell: its first line.

    >>> title_of("%%px  # Set up" + chr(10) + "import numpy")
    'Set up'
    """
    first = source.partition("\n")[0]
    return first.partition("# ")[2] or first


class MathMLRenderer(IPythonRenderer):
    """Markdown as HTML: formulas as MathML, and no links to files that are not delivered."""

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return f'<div class="formula">{"".join(mathml(piece, "block") for piece in split_formula(body))}</div>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return super().link(text, url, title) if re.match(r"https?://|mailto:|#", url) else text


def markdown(source: str) -> str:
    """Convert Markdown to HTML, with formulas as MathML."""
    return MarkdownWithMath(renderer=MathMLRenderer(escape=False, exclude_anchor_links=True)).render(source)


TOKENS = re.compile(r"(\\begin|\\end|\\left(?![a-z])|\\right(?![a-z])|\\qquad|\\to(?![a-z])|[{}=])")
OPENS, CLOSES = ("{", r"\begin", r"\left"), ("}", r"\end", r"\right")


def split_formula(body: str) -> list[str]:
    """Split a displayed formula where a line may break: at wide gaps, and before a second "=" or arrow.

    >>> split_formula(r"a = b = c, \\qquad d \\to e")
    ['a = b', '= c, \\\\quad', 'd \\\\to e']
    """
    found, depth, relations = [""], 0, 0
    for token in TOKENS.split(body):
        depth += (token in OPENS) - (token in CLOSES)
        if not depth and token == r"\qquad":
            found, relations = [*found[:-1], found[-1] + r"\quad", ""], 0
            continue
        if not depth and token in ("=", r"\to"):
            relations += 1
            found += [""] if relations > 1 else []
        found[-1] += token
    return [piece.strip() for piece in found if piece.strip()] if not depth else [body]


# An arrow with something above it: latex2mathml shifts that by signed lengths, which browsers do not know.
ARROW = re.compile(r'(<mover>)<mstyle scriptlevel="0"><mo>(&#x219[02];)</mo></mstyle><mpadded[^>]*>(.*?)<mspace depth="[^"]*" /></mpadded>')

# A matrix in parentheses: our style draws them, as they grow with a matrix only if there is a font for mathematics.
MATRIX = re.compile(r"<mo>&#x00028;</mo><mtable>(.*?)</mtable><mo>&#x00029;</mo>")


@lru_cache(maxsize=1000)
def mathml(formula: str, display: str = "inline") -> str:
    """Convert a formula to MathML; one that cannot be read stays as it is, as code."""
    try:
        found = convert(formula, display=display)
        found = ARROW.sub(r'\1<mo stretchy="true">\2</mo>\3', found)
        return MATRIX.sub(r'<mtable class="matrix">\1</mtable>', found)
    except Exception:  # a grader's comment may contain anything
        return f"<code>{formula.replace('&', '&amp;').replace('<', '&lt;')}</code>"
