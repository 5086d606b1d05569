"""ipyparallel's controller, which passes requests on to the ranks. ``python -m course_lib.engine.controller`` runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from course_lib.engine import watchdog

CONTROLLER = (
    "--IPController.use_threads=True",
    "--IPController.db_class=NoDB",
    "--IPController.enable_curve=False",
    "--TaskScheduler.scheme_name=pure",
    "--HeartMonitor.period=150",  # registration takes two beats
    "--HeartMonitor.max_heartmonitor_misses=4000",  # ten minutes: a laptop may sleep
    "--log-level=ERROR",
)


def run_controller(arguments: list[str]) -> None:
    """Run ipyparallel's controller in this process."""
    from ipyparallel.controller.app import IPController

    class Controller(IPController):
        name = "ipcontroller"

        def construct_url(self, kind: str, channel: str, index: int | str | None = None) -> str:
            # ipyparallel 9.2 binds Unix sockets as path-port, and connects to path:port.
            url = super().construct_url(kind, channel, index)
            head, _, port = url.rpartition("-") if url.startswith("ipc:") else url.rpartition(":")
            return f"{head}:{port}"

        def save_connection_dict(self, fname: str, cdict: dict) -> None:
            # There at once and whole: those who wait for the file read it as soon as it exists.
            path = Path(self.profile_dir.security_dir) / fname
            partial = path.with_suffix(".part")
            partial.touch(mode=0o600)
            partial.write_text(json.dumps(cdict))
            partial.rename(path)

    Controller.launch_instance(argv=arguments)


if __name__ == "__main__":
    watchdog.watch_from_environment()
    run_controller(sys.argv[1:])
