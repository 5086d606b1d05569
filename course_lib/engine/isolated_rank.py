"""Main program of an isolated rank: an IPython shell, and a connection to the broker for requests and communication.

Run by path, ``python -I isolated_rank.py LIBRARY RANK SIZE DESCRIPTOR``, in a sandbox; see `cluster.isolated`. The frames on the connection
are specified in `cluster.isolated.broker`.
"""

import builtins
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import threading
import time

MAX_OPEN_FILES = 16  # that student code may have open at once


def main(rank: int, size: int, descriptor: int) -> None:
    """Serve requests until the broker is gone.

    Parameters
    ----------
    rank, size : int
    descriptor : int
        File descriptor of the socket to the broker.
    """
    gc.disable()  # imports create no garbage
    die_with_parent(os.getppid())
    no_huge_pages()
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from course_lib.collectives import shared_memory
    from course_lib.collectives.transport import isolated
    from course_lib.engine import asyncio_wakeup, namespace, reply_limits, run_coroutine, serialization
    from course_lib.engine.requests import handler
    from course_lib.sandbox import landlock, seccomp, system_calls

    # Imported here, not within the first cell's time limit. This starts MPI, as a world of this rank alone, for code that uses it directly.
    comm_world, relay = (importlib.import_module(f"course_lib.collectives.{name}") for name in ("comm_world", "transport.relay"))
    shared_memory.unlink_mapped_files()  # isolated ranks are killed in the end, and would leave the files behind
    if files := json.loads(os.environ.pop("COURSE_FILES", "{}")):
        landlock.restrict_files(**files)
    apply_limits()
    give_up_rights()
    filtered = system_calls.install_filter()
    if os.environ.pop("COURSE_FILTERED", "") and not filtered:
        raise SystemExit(f"an isolated rank cannot limit its system calls, although the process that starts it can: {seccomp.problem()}.")
    if filtered:
        asyncio_wakeup.install()
    connection = isolated.join(socket.socket(fileno=descriptor), rank, size)
    comm_world.install()
    InteractiveShell.enable_gui = lambda *_: None  # for %matplotlib, which a notebook's shell has
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.loop_runner = run_coroutine.run
    go_on_after_magics(shell)
    sys.path.insert(0, "")  # as in a notebook: for modules that a cell has written with %%writefile
    builtins.get_ipython = namespace.get_ipython  # as in a notebook: available outside of cells, too
    me = {"outputs": [], "error": None, "value": serialization.encode({"rank": rank, "size": size, "host": "isolated"})}
    handler.ACTIONS["hello"] = lambda request: me
    warm_up()
    gc.freeze()  # permanent objects: exempt from collection, even a first one, which takes a tenth of the start-up time
    gc.enable()
    connection.send({"ready": rank})
    while True:
        try:
            header, request = connection.receive()
        except (EOFError, OSError):
            return
        if "request" not in header:
            relay.store_answer((header, request))  # the answer to a call that an earlier cell started
            continue
        request = pickle.loads(request)  # rebinding the name frees the bytes
        reply = handler.run_request(request)
        text, *arrays = reply_limits.parts_within_limits(reply, size)
        connection.send({"reply": header["request"], "text": len(text)}, text, *arrays)
        del request, reply, text, arrays  # memory between requests must be only what student code keeps


def go_on_after_magics(shell) -> None:
    """Have a shell print why a line magic or a command fails here, and go on with its cell.

    What is below such a line, as in ``!pip list`` or ``%load_ext line_profiler``, must not be
    missing because of what only a notebook has.
    """
    run_line_magic = shell.run_line_magic

    def run_or_say(name: str, line: str) -> object:
        try:
            return run_line_magic(name, line, _stack_depth=2)  # the caller's variables, not ours
        except Exception as error:
            print(f"%{name} is not available when grading: {type(error).__name__}: {error}")

    def say(command: str, **options) -> list:
        print(f"Commands are not run when grading: {command}")
        return []

    shell.run_line_magic = run_or_say
    shell.system = shell.getoutput = say


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends, whatever it is doing then."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def no_huge_pages() -> None:
    """Disable transparent huge pages, which would make measured memory up to 2 MB larger than the memory written to.

    NumPy asks for huge pages for arrays of 4 MB and more; on the heap, small objects may then get them, too.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE


def warm_up() -> None:
    """Trigger the one-time allocations of NumPy and BLAS, before the baseline of the rank's memory is measured."""
    import numpy as np

    for size in (8, 300):
        for dtype in (np.float32, np.float64):
            array = np.ones((size, size), dtype)
            np.dot(array, array)
    np.random.default_rng(0).standard_normal(8)


def apply_limits() -> None:
    """Set resource limits that this process cannot lift again."""
    unused = os.dup(0)
    os.close(unused)
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused + MAX_OPEN_FILES, unused + MAX_OPEN_FILES))
    for name, most in json.loads(os.environ.pop("COURSE_LIMITS", "{}")).items():
        if not hasattr(resource, name):
            continue  # not every system has all of them
        _, hard = resource.getrlimit(number := getattr(resource, name))
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))


def give_up_rights() -> None:
    """Drop all capabilities for good: without a sandbox, a rank may run as root."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for right in range(64):
            libc.prctl(24, right, 0, 0, 0)  # PR_CAPBSET_DROP
        libc.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
        libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24))


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    sys.argv, words = ["course_lib.engine"], sys.argv[2:]
    main(*map(int, words))
    os._exit(0)
