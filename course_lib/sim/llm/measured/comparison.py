"""Published values beside simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.sim.llm.analytic import estimate
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.measured.rows import MEASURED, Measured


@dataclass(frozen=True)
class Comparison:
    """A published value and the simulated one."""

    name: str
    theirs: float
    ours: float
    fitted: bool = False
    source: str = ""

    @property
    def error(self) -> float:
        """Relative error of our value."""
        return self.ours / self.theirs - 1


def times(rows: Sequence[Measured] | None = None, closed: bool = False) -> list[Comparison]:
    """Seconds per step, measured and simulated, or by closed forms."""
    return [Comparison(m.name, m.seconds, seconds(m, closed), m.fitted, m.source) for m in (MEASURED if rows is None else rows)]


def seconds(m: Measured, closed: bool = False) -> float:
    """Simulated seconds of a measured step, or those of closed forms."""
    if closed:
        return estimate(m.model, m.cluster, m.configuration)[0]
    return simulate(m.model, m.cluster, m.configuration, keep=False).seconds


def errors(rows: Sequence[Comparison]) -> tuple[float, float]:
    """Mean and worst error of the values that were not fitted."""
    found = [abs(row.error) for row in rows if not row.fitted]
    return sum(found) / len(found), max(found)


def bias(rows: Sequence[Comparison]) -> float:
    """Mean of the signed errors of the values that were not fitted."""
    found = [row.error for row in rows if not row.fitted]
    return sum(found) / len(found)


def summary(rows: Sequence[Comparison], by_table: bool = False) -> str:
    """Format the errors of the rows that are not fitted; and, if asked for, the mean of the signed ones of each table."""
    mean, worst = errors(rows)
    tables = [bias([row for row in rows if row.source == source]) for source in dict.fromkeys(row.source for row in rows)]
    each = f"; by table {', '.join(f'{value:+.1%}' for value in tables)}" if by_table else ""
    return f"mean {mean:.1%}, worst {worst:.1%}, bias {bias(rows):+.1%}{each}"


def table(rows: Sequence[Comparison], heading: str, unit: str) -> str:
    """Format rows as text, with the mean and the worst error below."""
    width = max(len(row.name) for row in rows)
    lines = [heading, f"{'':{width}}{'theirs':>7}{'ours':>7}{'error':>8}"]
    for row in rows:
        theirs, ours = (f"{value:7.1%}" if unit == "%" else f"{value:7.2f}" for value in (row.theirs, row.ours))
        lines.append(f"{row.name:{width}}{theirs}{ours}{row.error:+8.2%}{' fitted' if row.fitted else ''}")
    mean, worst = errors(rows)
    return "\n".join([*lines, f"{'mean and worst error, fitted rows excluded':{width}}  {mean:.2%}, {worst:.2%}"])
