"""Progress bar on a single line, in JupyterLab as well as in pages made from the notebook."""

from __future__ import annotations

import io
import sys

from IPython import get_ipython
from IPython.display import TextDisplayObject, display
from tqdm import tqdm


class _Line(TextDisplayObject):
    """A line of text as a separate output."""

    def __repr__(self) -> str:
        return self.data

    def _repr_mimebundle_(self, **_) -> dict[str, str]:
        return {"text/plain": self.data}


class _OneLine(io.TextIOBase):
    """Terminal with a single line: text after a carriage return replaces the line."""

    def __init__(self):
        self._handle = None

    def write(self, text: str) -> int:
        line = text.replace("\n", "\r").rstrip("\r").rpartition("\r")[2].rstrip()
        if line and self._handle:
            self._handle.update(_Line(line))
        elif line:
            self._handle = display(_Line(line), display_id=True)
        return len(text)


def bar(total: int, name: str = "", unit: str = "step") -> tqdm:
    """Make a progress bar that ends at `total`.

    Parameters
    ----------
    total : int
        Total number of units.
    name : str
        Text before the bar.
    unit : str
        Name of the unit.

    Returns
    -------
    tqdm.tqdm
        Use it in a ``with``, and call its ``update(n)``.
    """
    in_notebook = get_ipython() is not None and hasattr(get_ipython(), "kernel")
    return tqdm(total=total, desc=name, unit=unit, file=_OneLine() if in_notebook else sys.stderr, ncols=90, mininterval=0.2)
