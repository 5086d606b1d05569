"""Page and widget that look steps up in a table, with sliders; where no script runs, the best of each batch and length instead."""

from __future__ import annotations

import html
import json
from functools import cache
from pathlib import Path

from course_lib.plots import themes
from course_lib.plots.figures import COLORS, COMPUTING, MEMORY_STYLES, MISSING, SPAN_COLOR, WORK_COLORS, on_slides
from course_lib.sim.core.hardware import GIB
from course_lib.sim.plan import table
from course_lib.sim.plan.table import GRID, PARTS, Entry, Key, Table

SCRIPT = Path(__file__).with_name("explorer.js")
SLIDE_SCALE = 2.0  # size of type on a slide
PART_STYLES = {
    table.COMPUTING: (COMPUTING, ""),
    table.WITHIN_LAYERS: (COLORS[0], ""),
    table.MESSAGES: (COLORS[5], ""),
    table.WAITING: (SPAN_COLOR, MISSING),
    table.REPLICAS: (COLORS[7], ""),
    table.OPTIMIZER: (WORK_COLORS["update"], ""),
    table.OUTSIDE: (SPAN_COLOR, "xx"),
}
SLIDERS = {  # what each is called, and the unit of its sizes
    "batch": ("batch", "texts per step"),
    "sequence": ("length", "tokens per text"),
    "tensor": ("tensor", "devices"),
    "context": ("context", "devices"),
    "pipeline": ("pipeline", "devices"),
    "data": ("data", "devices"),
    "expert": ("expert", "devices"),
}
RESTS = {
    table.CHOSEN: "as the search chooses it: the fastest that fits",
    table.PLAIN: "plain: nothing recomputed, one text per micro-batch, only the optimizer state sharded (ZeRO 1)",
}
PAGE_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:66rem;margin:1.5rem auto;padding:0 1rem}"
    "td,th{text-align:left;padding:.1rem 1rem .1rem 0}"
    "@media(prefers-color-scheme:dark){:root{color-scheme:dark}body{color:#eee;background:#111}}"
)


class Explorer:
    """A table of steps that displays itself, with sliders; without them, it shows the best step of each batch and length.

    Parameters
    ----------
    found : Table
    """

    def __init__(self, found: Table):
        self.table = found
        self.title = f"{found.model.name} on {found.cluster.gpus:,} × {found.cluster.device.name}"

    def data(self) -> dict:
        """Return what `explorer.js` shows, as plain data: memory in GiB, times in seconds, all else in words."""
        best, texts = self.table.best(), {}
        entries = {_join(key): self._entry(key, one, best.get(key[:2]), texts) for key, one in self.table.entries.items()}
        own = best.get((self.table.model.batch, self.table.model.sequence))
        fastest = max(best.values(), key=lambda key: self.table.entries[key].tokens)
        return {
            "title": self.title,
            "scale": SLIDE_SCALE if on_slides() else 1,
            "devices": self.table.cluster.gpus,
            "memory": _short(self.table.cluster.device.memory / GIB),
            "axes": {name: {"sizes": self.table.axes[name], "label": label, "unit": unit} for name, (label, unit) in SLIDERS.items()},
            "grid": GRID,
            "rests": RESTS,
            "start": own or fastest,
            "fastest": fastest,
            "best": {_join(pair): key for pair, key in best.items()},
            "kinds": {kind: _style(*MEMORY_STYLES[kind]) for kind in self.table.entries[fastest].memory},
            "parts": {part: _style(*look) for part, look in PART_STYLES.items()},
            "waiting": table.WAITING,
            "entries": entries,
            "impossible": {_join(key): texts.setdefault(text, len(texts)) for key, text in self.table.impossible.items()},
            "texts": [*texts],
        }

    def _entry(self, key: Key, one: Entry, best: Key | None, texts: dict[str, int]) -> list:
        *numbers, configuration = one.row
        words = [texts.setdefault(text, len(texts)) for text in (configuration, self.table.limits(key, best))]
        memory, parts = ([_short(value) for value in some] for some in ([n / GIB for n in one.memory.values()], map(one.parts.get, PARTS)))
        return [int(one.fits), *numbers, *words, memory, parts]

    def page(self) -> str:
        """Return a page that needs neither a network nor other files."""
        title, rows = html.escape(self.title), self._repr_html_()
        # In a script, only these could end it early.
        data = json.dumps(self.data(), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        script = SCRIPT.read_text(encoding="utf-8").replace("export default { render };", "")
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{PAGE_STYLE}</style></head><body><h1>{title}</h1>"
            f'<main id="explorer"></main><noscript><p>The sliders need JavaScript. {rows}</noscript>'
            "<p>Simulated steps, computed before; for their accuracy, see <code>make validate</code>.</p>"
            f'<script type="application/json" id="table">{data}</script>'
            f'<script type="module">{script}\nconst data = JSON.parse(document.getElementById("table").textContent);\n'
            'render({ model: { get: () => data }, el: document.getElementById("explorer") });</script></body></html>\n'
        )

    def widget(self):
        """Make the widget."""
        return _widget_class()(data=self.data())

    def _repr_mimebundle_(self, **_: object) -> dict:
        try:
            live = self.widget()._repr_mimebundle_()
            live = live[0] if isinstance(live, tuple) else live
        except ImportError:
            live = {}
        return {**(live or {}), "text/html": self._repr_html_(), "text/plain": repr(self)}

    def _repr_html_(self) -> str:
        head, *body = ("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) for row, tag in self._tagged())
        rows = "".join(f"<tr>{row}</tr>" for row in body)
        return f"<p>{html.escape(self._heading())}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def __repr__(self) -> str:
        return "\n".join([self._heading(), "", *table.columns(self.table.summary())])

    def _heading(self) -> str:
        return f"{self.title}: the best step for each batch (texts per step) and length (tokens per text)."

    def _tagged(self) -> list[tuple[tuple[str, ...], str]]:
        return [(row, "th" if i == 0 else "td") for i, row in enumerate(self.table.summary())]


@cache
def _widget_class() -> type:
    import anywidget
    import traitlets

    class ExplorerWidget(anywidget.AnyWidget):
        _esm = SCRIPT
        data = traitlets.Dict().tag(sync=True)

    return ExplorerWidget


def _join(key: Key) -> str:
    return ",".join(map(str, key))


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _style(color: str, pattern: str) -> list[str]:
    """A colour in the light and the dark theme, and its pattern."""
    from matplotlib.colors import to_hex

    return [color, to_hex(themes.in_dark(color)[0]), pattern]
