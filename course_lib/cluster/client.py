"""An ipyparallel client that never unpickles what a rank sends.

What runs on a rank is a student's code. ipyparallel would unpickle its results, in this
process; here a request is a pickle (this side is trusted) and the answer is JSON.
"""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import Future, wait

import ipyparallel as ipp
import zmq
from ipyparallel.client.client import unpack_message
from traitlets import Dict, List
from traitlets.log import get_logger

from course_lib.engine import serialization
from course_lib.engine.requests.output import STALL_STREAM

_CODE = "__import__('course_lib.engine.requests.handler', fromlist=['handle']).handle()"
_REPLY = "__import__('course_lib.engine.requests.handler', fromlist=['Reply']).Reply()"


class Client(ipp.Client):
    """Sends requests to single ranks, and takes nothing but JSON from them."""

    _pending_interrupts: list[Future] = List()  # interrupts on their way
    _rank_by_request: dict[str, int] = Dict()  # ranks by the requests that they have not answered
    _unshown_output: list[tuple[int, str]] = List()  # by ranks, while they run a cell
    stalls: dict[int, str] = Dict()  # by rank: the call of bare MPI that it stays in, and where that stands

    def request(self, engine: int, what: dict) -> Future:
        """Send one request to an engine; `answer` reads what the future gives."""
        content = {"code": _CODE, "silent": True, "user_expressions": {"reply": _REPLY}}
        future = self._send(
            self._mux_socket,
            "execute_request",
            content=content,
            buffers=[pickle.dumps(what)],  # beside the code, which IPython would read several times over
            ident=self._engines[engine].encode(),
            track_outstanding=True,
        )
        self._rank_by_request[future.msg_id] = engine
        self.stalls.pop(engine, None)
        future.add_done_callback(self._on_reply)
        return future

    def _on_reply(self, future: Future) -> None:
        """Have ipyparallel forget a request that is answered: it waits for a status message, and our engines send none."""
        self._rank_by_request.pop(future.msg_id, None)
        if not future.output.done():
            future.output.set_result(None)

    def new_output(self) -> list[tuple[int, str]]:
        """Return the output that ranks have sent since the last call, while they run a cell: rank and text."""
        printed, self._unshown_output = self._unshown_output, []
        return printed

    def _send(self, socket: zmq.Socket, *args, **kwargs) -> Future:
        # ipyparallel 9.2 sends on the socket behind the stream's back. When a reply comes at that
        # moment, the stream is not woken: the reply lies there for ever. So have it look.
        future = super()._send(socket, *args, **kwargs)
        stream = self._mux_stream if socket is self._mux_socket else self._control_stream
        self._io_loop.add_callback(stream.flush)
        return future

    def flush_replies(self) -> None:
        """Have replies read that may lie unseen, see `_send`."""
        for stream in (self._mux_stream, self._control_stream):
            self._io_loop.add_callback(stream.flush)

    def interrupt(self, engines: list[int]) -> list[Future]:
        """Interrupt what the engines compute, as Ctrl-C would; a future is done when its engine has been told."""
        identities = self._build_targets(engines)[0] if engines else []
        told = [self._send(self._control_stream, "interrupt_request", content={}, ident=identity) for identity in identities]
        self._pending_interrupts.extend(told)
        return told

    def wait_for_interrupts(self, timeout: float) -> None:
        """Wait until all interrupts are taken: one that a busy rank takes late is not to hit the next thing that it does."""
        waiting = list(self._pending_interrupts)
        self.flush_replies()
        wait(waiting, timeout)
        self._pending_interrupts = [
            future for future in self._pending_interrupts if future not in waiting
        ]  # once: what is lost, nobody waits for again

    def _stop_scheduling_tasks(self) -> None:
        """Say nothing when a rank goes: there is no task farming here, and `connection` reports it."""

    def _handle_apply_reply(self, msg: dict) -> None:
        if msg["content"].get("status") == "ok":  # nobody here asks for pickles
            msg["content"] = {"status": "error", "ename": "Refused", "evalue": "a pickle from a rank", "traceback": []}
        super()._handle_apply_reply(msg)

    @unpack_message
    def _dispatch_iopub(self, msg: dict) -> None:
        rank = self._rank_by_request.get((msg["parent_header"] or {}).get("msg_id"))
        if msg["header"]["msg_type"] == "stream":
            if rank is not None and isinstance(text := msg["content"].get("text"), str):
                if msg["content"].get("name") == STALL_STREAM:
                    self.stalls[rank] = text
                else:
                    self._unshown_output.append((rank, text))
        elif msg["header"]["msg_type"] in ("status", "error"):
            ipp.Client._dispatch_iopub.__wrapped__(self, msg)

    @staticmethod
    def answer(future: Future) -> dict | None:
        """The rank's reply, or None when it could not be read (the rank was interrupted, or died)."""
        try:
            shown = future.result(0)._content["user_expressions"]["reply"]
            return serialization.loads(shown["data"]["text/plain"])
        except Exception:
            return None


def connect(file: str, timeout: float = 30) -> Client:
    """A client of the controller that wrote this connection file."""
    log = get_logger()
    before, log.disabled = log.disabled, True  # where all is encrypted, it says that nothing is signed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Client(file, timeout=timeout)
    finally:
        log.disabled = before
