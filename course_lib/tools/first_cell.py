"""IPython extension that `make lab` installs in its environment: ``%%px`` explains what to do while no ranks are running.

`cluster.start` replaces it with the real magic.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

WORK_DIR_ENV = "COURSE_WORK"  # set by the hub: the folder with saved functions
IPYTHON_CONFIG = """# Written by `make lab`: until ranks are up, %%px says how to start them.
c.InteractiveShellApp.extensions.append("course_lib.tools.first_cell")
"""


def load_ipython_extension(shell) -> None:
    """Register the magics in a new kernel; on a hub, also change to the user's folder, wherever the notebook is."""
    work = Path(os.environ.get(WORK_DIR_ENV) or "/nowhere")
    if work in Path.cwd().parents:
        os.chdir(work)
    shell.register_magic_function(_no_ranks, "cell", "px")
    shell.register_magic_function(_no_ranks, "line", "px")
    shell.set_custom_exc((NameError,), _explain)


def install_config(prefix: Path | None = None) -> None:
    """Make every IPython of this environment load the extension; a file of the same name written by others is kept."""
    path = (prefix or Path(sys.prefix)) / "etc" / "ipython" / "ipython_config.py"
    with contextlib.suppress(OSError):  # an environment that belongs to another user
        if path.exists() and not path.read_text().startswith(IPYTHON_CONFIG.splitlines()[0]):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(IPYTHON_CONFIG)


class RanksNotStarted(RuntimeError):
    """``%%px`` was run while no ranks were running."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mRanksNotStarted\x1b[0m: {self}"]


def _explain(shell, kind, error, trace, tb_offset=None) -> None:
    """Tell which cell defines a name that is missing."""
    from course_lib.cluster.source import misplaced_names

    error.args = (f"{error}{misplaced_names.kernel_hint(str(error), lambda name: False)}",)
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def _no_ranks(line: str, cell: str = "") -> None:
    raise RanksNotStarted(
        "%%px runs a cell on the ranks, but in this notebook none are up yet. "
        "Run the first code cell of the notebook, the one with cluster.start, and then this one again."
    )
