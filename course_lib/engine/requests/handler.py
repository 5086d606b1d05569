"""Handler of the kernel's requests on a rank: run a cell or call a function, and reply.

A request is a dict: "do" (a key of `ACTIONS`); "round", its number; "targets", the mask of the ranks that are asked; "epoch" (see
`collectives.progress.operations`); "trace", the number of events to record (0: no trace); "silences" (see
`collectives.instrumentation.silences`); and the action's arguments. A reply is a dict:
"outputs" (see `output.Outputs`), "error" (see `tracebacks.describe`, or None), "abandoned" and "sent", by which the kernel decides whether
to begin a new epoch, "trace" (see `trace.Recorder.as_dict`), "silences" (those that have not begun), and the action's results.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import difflib
import functools
import gc
import importlib
import math
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from types import FrameType

from course_lib import collectives
from course_lib.collectives.transport import isolated
from course_lib.engine import memory_limit, run_coroutine, serialization, traffic_gates
from course_lib.engine.namespace import get_ipython
from course_lib.engine.requests import completion, tracebacks
from course_lib.engine.requests.output import capture_output
from course_lib.utils import host

COLLECTIVES_FOLDER = os.path.dirname(collectives.__file__) + os.sep
OPERATIONS_MODULE = "course_lib.collectives.progress.operations"  # imported only when needed, as that starts MPI
_reply: dict = {}
INTERRUPT_HOLDOFF_SECONDS = 1.0  # until a request can be interrupted again; needed, as a bare `except` may catch the first interrupt
_interruptible_from = math.inf
_was_interrupted = _ended_by_itself = False  # by the latest request: whether an interrupt came, and whether its cell ended before any


class Reply:
    """An object whose repr is the last request's reply, as JSON."""

    def __repr__(self) -> str:
        return serialization.dumps(_reply)


def handle() -> None:
    """Carry out the request that is pickled in the message's buffer; `Reply` then has the reply."""
    global _reply
    _reply = {"outputs": [], "error": None}
    _reply = run_request(pickle.loads(get_ipython().kernel.get_parent("shell")["buffers"][0]))


def run_request(request: dict) -> dict:
    """Carry out a request and return the reply."""
    global _interruptible_from, _was_interrupted, _ended_by_itself
    reply = {"outputs": [], "error": None}
    _was_interrupted = _ended_by_itself = False
    # Only the action may be interrupted: an interrupt in the kernel's own code would lose the reply.
    signal.signal(signal.SIGINT, _interrupted)
    _interruptible_from = 0.0
    try:
        reply = ACTIONS[request["do"]](request)
    except BaseException as error:  # an interrupt, or an exception that could not be described: reply in any case
        _interruptible_from = math.inf
        if isinstance(error, MemoryError):
            memory_limit.raise_for_reply()
        reply = {"outputs": [], "error": tracebacks.describe(error)}
    finally:
        _interruptible_from = math.inf
        operations = sys.modules.get(OPERATIONS_MODULE)
        reply["abandoned"] = bool(operations and operations.has_abandoned_operations())
        reply["sent"] = bool(operations and operations.progress_state.has_messages)
        reply["in_time"] = _ended_by_itself
    return reply


def _interrupted(_: int, frame: FrameType) -> None:
    """Handle SIGINT: raise KeyboardInterrupt, but defer it if the main thread is in a call of the communicator."""
    global _interruptible_from, _was_interrupted
    now = time.monotonic()
    if now >= _interruptible_from:
        _was_interrupted = True
        _interruptible_from = now + INTERRUPT_HOLDOFF_SECONDS
        operations = sys.modules.get(OPERATIONS_MODULE)
        if isolated.connection:
            isolated.connection.interrupt()
        elif operations and operations.progress_state.deferrals and _communicates(frame):
            operations.progress_state.interrupt_pending = True
        else:
            raise KeyboardInterrupt


def _communicates(frame: FrameType | None) -> bool:
    while frame and not frame.f_code.co_filename.startswith(COLLECTIVES_FOLDER):
        frame = frame.f_back
    return frame is not None


def _hello(request: dict) -> dict:
    from mpi4py import MPI

    from course_lib.collectives.transport import mpi

    with contextlib.suppress(OSError):
        os.chdir(request["folder"])
    sys.path[:] = [*request["path"], *(p for p in sys.path if p not in request["path"])]
    shell = get_ipython()
    shell.loop_runner = run_coroutine.run
    shell.set_hook("show_in_pager", completion.page, 1)
    shell.user_ns["exit"] = shell.user_ns["quit"] = sys.exit  # IPython's do nothing on a rank, silently
    warnings.filterwarnings("ignore", "To exit: use")  # IPython's warning about SystemExit
    shell.kernel.pre_handler_hook = shell.kernel.post_handler_hook = lambda: None  # they would replace our SIGINT handler
    me = {"rank": MPI.COMM_WORLD.rank, "size": MPI.COMM_WORLD.size, "host": host.name()}
    try:
        mpi.world()
        board = mpi.open_board()
        if "board" in request:
            board.pass_descriptor(request["board"])
    except Exception as error:  # such as machines that cannot reach each other
        return {"outputs": [], "error": tracebacks.describe(error)}
    if board.hosts:
        me["agent"] = list(board.hosts.agent)
    return {"outputs": [], "error": None, "value": serialization.encode(me)}


def _cell(request: dict) -> dict:
    shell = get_ipython()
    with _round(request) as finish, capture_output(shell) as outputs, _named(shell.compile, request["label"]):
        with _recording(request) as trace, _silences(request) as silences:
            result = shell.run_cell(request["source"], store_history=False)
        raised = result.error_before_exec or result.error_in_exec
        if isinstance(raised, SyntaxError) and str(raised.filename).startswith("<"):
            raised.filename = request["label"]  # the tokenizer does not know the cell's name
        error = finish(raised)
    return {"outputs": outputs, "error": error, "silences": silences, **trace}


def _call(request: dict) -> dict:
    """Call a function from the student's namespace, or one shipped with the request (see `cluster.source.ship_function`)."""
    from course_lib import traffic
    from course_lib.collectives.instrumentation.wrong_group_hint import hints_for_error, record_wrong_groups
    from course_lib.collectives.progress.operations import progress_state

    shell, value, error, trace, silences, open_before = get_ipython(), None, None, {}, None, progress_state.open_requests
    looking = contextlib.nullcontext([]) if isolated.connection else record_wrong_groups()
    with _round(request) as finish, capture_output(shell) as outputs, looking as wrong_group:
        try:
            with _recording(request) as trace, _silences(request) as silences:
                traffic.reset()
                traffic_gates.set_gates(request["gates"])
                namespace = _unpacked(request) if request["source"] else shell.user_ns
                if request["function"] not in namespace:
                    raise NameError(f"name '{request['function']}' is not defined", name=request["function"])
                value = serialization.encode(namespace[request["function"]](**request["arguments"]))
        except BaseException as caught:
            error = finish(caught)
            wrong_group += [] if isolated.connection else hints_for_error(caught)
        else:
            error = finish(None)
    moved = [[e.operation, list(e.ranks), e.calls, e.payload] for e in traffic.entries()]
    reply = {"outputs": outputs, "error": error, "value": value, "traffic": moved, "wrong_group": wrong_group[:1], **trace}
    return {**reply, "silences": silences, "unended": max(0, progress_state.open_requests - open_before)}


def _unpacked(request: dict) -> dict:
    """Return the global names of a shipped function: those sent with it, Python's builtins, and then this rank's names."""
    namespace = {name: value for name, value in get_ipython().user_ns.items() if not hasattr(builtins, name)}
    for name, module in request["modules"].items():
        namespace[name] = importlib.import_module(module)
    for name, (module, place) in request["objects"].items():
        namespace[name] = functools.reduce(getattr, place.split("."), importlib.import_module(module))
    namespace |= request["values"] | {"__builtins__": builtins}
    exec(compile(request["source"], "test", "exec"), namespace)
    own = get_ipython().user_ns
    namespace.update({name: own[name] for name in request["yielding"] if name in own})
    return namespace


def _tidy(request: dict) -> dict:
    """Collect garbage and return free memory to the system, before memory is measured."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return {"outputs": [], "error": None}


ACTIONS = {
    "hello": _hello,
    "cell": _cell,
    "call": _call,
    "tidy": _tidy,
    "complete": completion.complete,
    "inspect": completion.inspect,
    "nothing": lambda request: {"outputs": [], "error": None},
}


@contextlib.contextmanager
def _round(request: dict) -> Iterator:
    """Context manager of a cell or call: announces its start and end on the status board.

    Yields
    ------
    callable
        Is given the exception that ended the cell, or None; returns its description.
    """
    from course_lib.collectives.progress import operations
    from course_lib.collectives.snapshot import DEADLOCKED, FINISHED, RAISED

    board = None
    if not isolated.connection:
        from course_lib.collectives.progress import engine

        board = engine.open_board()
    operations.begin_cell(request["epoch"])
    if board:
        board.begin(request["round"], request["targets"])
    ended = False

    def finish(error: BaseException | None) -> dict | None:
        global _ended_by_itself
        nonlocal ended
        _ended_by_itself = not _was_interrupted  # before it waits for others
        if isinstance(error, MemoryError):
            memory_limit.raise_for_reply()
        described = tracebacks.describe(error) if error else None
        # Messages of a call, which is a check's, must not match those of later cells.
        operations.end_cell(error is not None or request["do"] == "call")
        if type(error) is TypeError:
            described["message"] += tracebacks.hidden(described["message"], get_ipython().user_ns)
        if type(error) is NameError and isinstance(error.name, str):
            described["near"] = difflib.get_close_matches(error.name, get_ipython().user_ns, 1, 0.75)
        if board:
            if described and "DeadlockError" in described["kind"]:
                board.end(DEADLOCKED, keep_call=True)  # the board already shows where this rank waited
            elif described:
                mismatch = "MismatchError" in described["kind"]  # other ranks still need to read this rank's call
                board.end(RAISED, f"{described['name']} ({described['place']})", keep_call=mismatch)
            else:
                board.end(FINISHED)
            engine.drain()
        ended = True
        return described

    try:
        yield finish
    finally:
        if not ended:
            operations.end_cell(True)
            if board:
                board.end(RAISED, "KeyboardInterrupt")


@contextlib.contextmanager
def _recording(request: dict) -> Iterator[dict]:
    """Context manager: record a trace if the request asks for one; the dict that it yields then gets "trace"."""
    reply: dict = {}
    if not request.get("trace") or isolated.connection:
        yield reply
        return
    from course_lib.collectives import Communicator
    from course_lib.collectives.instrumentation import recording
    from course_lib.collectives.progress import engine
    from course_lib.trace import Recorder

    recorder, clock = Recorder(request["trace"]), {}
    world = Communicator()
    if engine.open_board().machines and request["targets"] == (1 << world.Get_size()) - 1:
        offset, uncertainty = recording.clock_offset(world, recorder)
        clock = {"offset": offset, "uncertainty": uncertainty}
    try:
        with recording.recording(recorder):
            yield reply
    finally:
        reply["trace"] = recorder.as_dict() | clock


def _silences(request: dict) -> contextlib.AbstractContextManager:
    """Return a context manager in which this rank falls silent, if the request asks for it; inside a trace, which then shows it."""
    if not request.get("silences"):
        return contextlib.nullcontext()
    from course_lib.collectives.instrumentation import silences

    return silences.silences(request["silences"])


@contextlib.contextmanager
def _named(compiler, label: str) -> Iterator[None]:
    """Context manager: code compiled within is called `label` in tracebacks."""
    compiler.get_code_name = lambda *_: label
    try:
        yield
    finally:
        del compiler.get_code_name
