"""ipyparallel's controller, which forwards requests to the ranks; run by ``python -m course_lib.engine.processes.controller``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from threading import Thread

from course_lib.engine.processes import imports, watchdog

CONTROLLER_SETTINGS = {
    "IPController": {"use_threads": True, "db_class": "NoDB", "enable_curve": False, "log_level": "ERROR"},
    "TaskScheduler": {"scheme_name": "pure"},
    "HeartMonitor": {"period": 150, "max_heartmonitor_misses": 4000},  # registration takes two heartbeats; start-up may be slow
}


class HeartThread(Thread):
    """Runs the heart monitor in a thread instead of a process, which saves memory."""

    def terminate(self) -> None:
        """Do nothing: the thread ends with this process."""


def run_controller(n: int, folder: str, network: dict[str, str]) -> None:
    """Run ipyparallel's controller in this process.

    Parameters
    ----------
    n : int
        Number of engines to wait for.
    folder : str
        The profile folder, for the connection files.
    network : dict
        Network settings of IPController.
    """
    from ipyparallel.controller import app, heartmonitor, hub
    from traitlets.config import Config

    class Controller(app.IPController):
        name = "ipcontroller"

        def parse_command_line(self, argv: list[str] | None = None) -> None:
            """Do nothing: all settings are in `config`."""

        def load_config_file(self, *_: object, **__: object) -> None:
            """Do nothing: a user's controller settings are not meant for this one."""

        def construct_url(self, kind: str, channel: str, index: int | str | None = None) -> str:
            # ipyparallel 9.2 binds Unix sockets as path-port, but connects to path:port.
            url = super().construct_url(kind, channel, index)
            head, _, port = url.rpartition("-") if url.startswith("ipc:") else url.rpartition(":")
            return f"{head}:{port}"

        def save_connection_dict(self, fname: str, cdict: dict) -> None:
            # Atomically: other processes read the file as soon as it exists.
            path = Path(self.profile_dir.security_dir) / fname
            partial = path.with_suffix(".part")
            partial.touch(mode=0o600)
            partial.write_text(json.dumps(cdict))
            partial.rename(path)

    class Hearts(heartmonitor.HeartMonitor):
        """Heart monitor that stops once all engines have registered: a rank that ends later ends mpiexec, which is noticed without it."""

        def beat(self) -> None:
            super().beat()
            if len(self.hearts) >= n:
                self.caller.stop()

    class QuietHub(hub.Hub):
        """Hub that keeps track of engines, but not of requests: nothing uses that, and it would parse each message again."""

        def save_queue_request(self, *_: object) -> None:
            """Do nothing."""

        save_queue_result = monitor_iopub_message = save_queue_request

    app.Hub, app.Process, heartmonitor.HeartMonitor = QuietHub, HeartThread, Hearts
    config = Config(CONTROLLER_SETTINGS | {"ProfileDir": {"location": folder}})
    config.IPController.update(network)
    Controller.launch_instance(argv=[], config=config)


if __name__ == "__main__":
    watchdog.watch_from_environment()
    imports.leave_out("numpy")
    run_controller(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
