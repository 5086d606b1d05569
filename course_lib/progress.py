"""A progress bar that is one line in JupyterLab, and one line in every page that is made of the notebook."""

from __future__ import annotations

import io
import sys

from IPython import get_ipython
from IPython.display import TextDisplayObject, display
from tqdm import tqdm


class _Line(TextDisplayObject):
    """A line of text as an output of its own."""

    def __repr__(self) -> str:
        return self.data

    def _repr_mimebundle_(self, **_) -> dict[str, str]:
        return {"text/plain": self.data}


class _OneLine(io.TextIOBase):
    """A terminal of one line: what is written behind the last carriage return takes the place of what was there."""

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
    """A bar that goes to `total`.

    Parameters
    ----------
    total : int
        Units in all.
    name : str
        What stands before it.
    unit : str
        What is counted.

    Returns
    -------
    tqdm.tqdm
        Use it in a ``with``, and call its ``update(n)``.
    """
    in_notebook = get_ipython() is not None and hasattr(get_ipython(), "kernel")
    return tqdm(total=total, desc=name, unit=unit, file=_OneLine() if in_notebook else sys.stderr, ncols=90, mininterval=0.2)
