"""``python -m course_lib.engine`` is one ipyparallel engine; `mpiexec` starts one a rank."""

from __future__ import annotations

import sys

from course_lib.engine.watchdog import watch_from_environment


def main() -> None:
    """Start this process as an engine, and end it when the notebook's kernel is gone."""
    watch_from_environment()
    sys.modules.setdefault("debugpy", None)  # ipykernel would import it, for a second of each start
    from ipyparallel.engine.app import IPEngine

    from course_lib.collectives import meeting

    meeting.base()  # every rank has joined MPI before it registers
    IPEngine.launch_instance()


if __name__ == "__main__":
    sys.argv[0] = "course_lib.engine"
    main()
