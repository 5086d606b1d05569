"""The ipyparallel engine of a rank, created in two steps, so that the zygote can take the first (`prepare`) once for all ranks."""

from __future__ import annotations

import signal
import sys
from types import SimpleNamespace

from ipykernel import ipkernel
from ipykernel.compiler import XCachingCompiler
from ipykernel.iostream import OutStream
from ipykernel.zmqshell import ZMQInteractiveShell
from ipyparallel.engine.app import IPEngine
from IPython.core.profiledir import ProfileDir
from traitlets.config import Config

from course_lib.engine.processes.watchdog import watch_from_environment

# Replaces ipyparallel's command line.
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
    "HistoryManager": {"enabled": False},  # saves a database and its thread
    "IPKernelApp": {"default_extensions": []},  # `%store`, which needs that database
}


class DelayedOutStream(OutStream):
    """Stream for output not captured by `requests.output`, such as a thread's between cells; sent up to 0.2 s later."""

    def flush(self) -> None:
        """Do nothing: the output is sent in any case."""


class RankEngine(IPEngine):
    """An engine that reads no command line and no configuration file, which in a fork would copy megabytes of memory pages."""

    name = "ipengine"

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """Do nothing: all settings are in `config`."""

    def load_config_file(self, *_: object, **__: object) -> None:
        """Do nothing: a user's engine settings are not meant for ranks."""

    def initialize(self, argv: list[str] | None = None) -> None:
        """Initialize everything that needs neither the controller nor the rank's own process."""
        super(IPEngine, self).initialize(argv)

    def start(self) -> None:
        """Connect to the controller, and serve requests."""
        self.init_engine()
        super().start()

    def init_signal(self) -> None:
        """Connect the shell, created earlier, to the kernel; called by ipyparallel right after it has created the kernel."""
        self.kernel.shell.kernel = self.kernel
        self.kernel._publish_status = lambda *_, **__: None  # saves two messages per request: the reply marks the end
        super().init_signal()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ipyparallel's handler would wait for the end of the cell


def prepare(folder: str) -> RankEngine:
    """Create an engine with its shell, without threads, sockets or MPI, so that it can be forked.

    Parameters
    ----------
    folder : str
        The folder with the controller's connection files.

    Returns
    -------
    RankEngine
    """
    # A kernel lists the files of all modules, for a debugger that ranks do not have; each look copies a page of the fork, 3 MB a rank.
    ipkernel.sys = SimpleNamespace(**vars(sys) | {"modules": {}})
    engine = RankEngine.instance(config=Config(ENGINE_SETTINGS | {"ProfileDir": {"location": folder}}))
    engine.initialize([])
    ZMQInteractiveShell.instance(parent=engine, profile_dir=ProfileDir(location=folder), compiler_class=XCachingCompiler)
    return engine


def serve(engine: RankEngine) -> None:
    """Initialize MPI and serve as a rank, until the notebook's kernel is gone."""
    watch_from_environment()
    from mpi4py import MPI

    from course_lib.collectives.transport.mpi import base_comm

    if not MPI.Is_initialized():  # the zygote imports mpi4py without initializing MPI
        MPI.Init_thread()
    base_comm()  # collective: every rank has initialized MPI before any of them registers
    engine.start()
