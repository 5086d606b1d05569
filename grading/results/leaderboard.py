"""`make leaderboard`: a static page (and a CSV) from the autograded notebooks of part 20, with handles and without names."""

from __future__ import annotations

import html
import sys
from pathlib import Path

import nbformat

from course_lib.plots.figures import WORK_COLORS
from course_lib.sim.schedule.score import BEST, LEADERBOARD_MIME, SPARKLINE_BINS
from course_lib.utils import wording
from grading import tables
from grading.paths import GRADING

LEADERBOARD_PART = "20_custom_strategy"
ENTRY_CELL_ID = "leaderboard-entry"
WIDTH, HEIGHT = 120, 26
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } th, td { padding: .35rem .7rem; text-align: right }
th, td { vertical-align: middle; white-space: nowrap }
th { border-bottom: 2px solid #222 } td { border-bottom: 1px solid #ddd } th:nth-child(2), td:nth-child(2) { text-align: left }
td svg { display: block } caption { text-align: left; padding-bottom: .7rem; color: #555 }
"""


def entries(autograded: Path) -> list[dict]:
    """Return the entries of all submissions that have one, the best first: by score, then by utilisation.

    Parameters
    ----------
    autograded : Path
        nbgrader's folder: ``student/20_custom_strategy/20_custom_strategy.ipynb``.
    """
    notebooks = (nbformat.read(path, as_version=4) for path in sorted(autograded.glob(f"*/{LEADERBOARD_PART}/{LEADERBOARD_PART}.ipynb")))
    found = [made for notebook in notebooks if (made := entry(notebook))]
    return sorted(found, key=lambda e: (e["score"], _mean(e, "utilisation")), reverse=True)


def entry(notebook: nbformat.NotebookNode) -> dict | None:
    """Return the entry in a graded notebook, if there is one."""
    shown = [o for cell in notebook.cells if cell.get("id") == ENTRY_CELL_ID for o in cell.get("outputs", [])]
    made = [
        o.data[LEADERBOARD_MIME] for o in shown if o.output_type == "execute_result" and LEADERBOARD_MIME in o.data
    ]  # the cell's own, not the ranks'
    return made[0] if made else None


def _mean(entry: dict, what: str) -> float:
    return sum(run[what] for run in entry["runs"]) / len(entry["runs"])


def _sizes(run: dict) -> str:
    return f"{run['settings']['world_size']} × {run['settings']['num_layers']}"


def spark(run: dict) -> str:
    """Draw the schedule as a small picture: the number of ranks in forward (below) and in backward (above), over time."""
    step, below, shapes = WIDTH / SPARKLINE_BINS, [0.0] * SPARKLINE_BINS, []
    for kind in ("forward", "backward"):
        above = [min(1.0, a + b) for a, b in zip(below, run["sparkline"][kind], strict=True)]
        edge = [(i * step + dx, HEIGHT * (1 - v)) for i, v in enumerate(above) for dx in (0, step)]
        back = [(i * step + dx, HEIGHT * (1 - v)) for i, v in reversed(list(enumerate(below))) for dx in (step, 0)]
        shapes.append(f'<polygon fill="{WORK_COLORS[kind]}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in edge + back)}"/>')
        below = above
    title = f"{_sizes(run)}: ranks in forward and in backward, over time"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{title}"><title>{title}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#eee"/>{"".join(shapes)}</svg>'
    )


def page(found: list[dict]) -> str:
    """Render the leaderboard as a self-contained HTML page."""
    clusters = [_sizes(run) for run in found[0]["runs"]] if found else []
    heads = ["", "handle", f"score of {BEST:g}"]
    for cluster in clusters:
        heads += [f"MFU<br>{cluster}", f"memory<br>{cluster}", f"time<br>{cluster}", f"schedule<br>{cluster}"]
    rows = []
    for place, entry in enumerate(found, 1):
        cells = [str(place), html.escape(entry["handle"]), f"{entry['score']:.2f}"]
        for run in entry["runs"]:
            cells += [f"{run['utilisation']:.1%}", wording.size(run["memory"]), wording.seconds(run["time"]), spark(run)]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    body = "\n".join(rows) or f'<tr><td colspan="{len(heads)}">No entries yet.</td></tr>'
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Leaderboard: your own strategy</title>'
        f"<style>{STYLE}</style>\n<h1>Your own strategy</h1>\n<table><caption>Part 20, clusters as ranks × layers</caption>\n"
        f"<thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></html>\n"
    )


def write(autograded: Path, folder: Path) -> tuple[Path, Path, int]:
    """Write leaderboard.html and leaderboard.csv; return both paths and the number of entries."""
    found = entries(autograded)
    page_path, table_path = folder / "leaderboard.html", folder / "leaderboard.csv"
    page_path.write_text(page(found), encoding="utf-8")
    rows = [["place", "handle", "score", "ranks x layers", "MFU", "memory in bytes", "time in seconds"]]
    for place, entry in enumerate(found, 1):
        for run in entry["runs"]:
            sizes = f"{run['settings']['world_size']} x {run['settings']['num_layers']}"
            figures = (f"{entry['score']:.3f}", sizes, f"{run['utilisation']:.4f}", int(run["memory"]), str(run["time"]))
            rows.append([place, entry["handle"], *figures])
    tables.write(table_path, rows)
    return page_path, table_path, len(found)


def main() -> None:
    page_path, table_path, n = write(GRADING / "autograded", GRADING)
    print(f"{n} entr{'y' if n == 1 else 'ies'}: {page_path} and {table_path.name}")
    if not n:
        sys.exit(f"No autograded hand-in of part 20 has an entry. Run `make autograde PART={LEADERBOARD_PART}` first.")


if __name__ == "__main__":
    main()
