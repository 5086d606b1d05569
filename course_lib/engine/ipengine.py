"""One ipyparallel engine: made in two steps, so that the zygote can do the first one once for all ranks."""

from __future__ import annotations

import signal

from ipykernel.compiler import XCachingCompiler
from ipykernel.iostream import OutStream
from ipykernel.zmqshell import ZMQInteractiveShell
from ipyparallel.engine.app import IPEngine
from IPython.core.profiledir import ProfileDir
from traitlets.config import Config

from course_lib.engine.processes.watchdog import watch_from_environment

# What ipyparallel's own command line would say.
ENGINE_SETTINGS = {
    "IPEngine": {
        "use_mpi": True,
        "init_mpi": "",
        "enable_nanny": False,  # the kernel signals ranks itself, see `cluster.Ranks.interrupt`
        "wait_for_url_file": 120.0,
        "timeout": 120.0,
        "max_heartbeat_misses": 0,  # the watchdog ends a rank
        "log_level": "ERROR",
        "out_stream_factory": f"{__name__}.DelayedOutStream",
    },
    "HistoryManager": {"enabled": False},  # neither a database nor a thread for it
}


class DelayedOutStream(OutStream):
    """Stream for what is written past `requests.output`, such as by a thread between cells; sent 0.2 s later, and no request waits."""

    def flush(self) -> None:
        """Nothing: what was written is sent in any case."""


class RankEngine(IPEngine):
    """An engine that looks at no command line and no file of the user's; in a fork, each look copies megabytes of pages."""

    name = "ipengine"

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """Nothing: all is in `config`."""

    def load_config_file(self, *_: object, **__: object) -> None:
        """Nothing: a user's settings for engines are not meant for these."""

    def initialize(self, argv: list[str] | None = None) -> None:
        """Initialize what needs neither the controller nor a rank's own process."""
        super(IPEngine, self).initialize(argv)

    def start(self) -> None:
        """The rest, and then serve."""
        self.init_engine()
        super().start()

    def init_signal(self) -> None:
        """Called when the kernel has just been made: the shell, which was there before, learns of it."""
        self.kernel.shell.kernel = self.kernel
        self.kernel._publish_status = lambda *_, **__: None  # two messages a request, and the reply says when it is over
        super().init_signal()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ipyparallel's own would end it when its cell has ended


def prepare(folder: str) -> RankEngine:
    """An engine with its shell: no thread, no socket, no MPI yet.

    Parameters
    ----------
    folder : str
        Where the controller has its connection files.
    """
    engine = RankEngine.instance(config=Config(ENGINE_SETTINGS | {"ProfileDir": {"location": folder}}))
    engine.initialize([])
    ZMQInteractiveShell.instance(parent=engine, profile_dir=ProfileDir(location=folder), compiler_class=XCachingCompiler)
    return engine


def serve(engine: RankEngine) -> None:
    """Join MPI and be a rank, until the notebook's kernel is gone."""
    watch_from_environment()
    from mpi4py import MPI

    from course_lib.collectives.transport.mpi import base_comm

    if not MPI.Is_initialized():  # the zygote has loaded it
        MPI.Init_thread()
    base_comm()  # every rank has joined MPI before it registers
    engine.start()
