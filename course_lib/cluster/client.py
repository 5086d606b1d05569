"""An ipyparallel client that never unpickles data from a rank.

A rank runs student code, and ipyparallel would unpickle its results in this process. Here, a
request is a pickle, as this side is trusted, and the reply is JSON.
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
    """Sends requests to single ranks, and accepts only JSON from them."""

    _pending_interrupts: list[Future] = List()  # interrupts that have not been acknowledged
    _rank_by_request: dict[str, int] = Dict()  # the rank of each unanswered request, by message id
    _unshown_output: list[tuple[int, str]] = List()  # rank and text, in order of arrival
    stalls: dict[int, str] = Dict()  # by rank: the plain MPI call in which it has stalled, and its place

    def request(self, engine: int, what: dict) -> Future:
        """Send a request to an engine; pass the future to `answer` for the reply."""
        content = {"code": _CODE, "silent": True, "user_expressions": {"reply": _REPLY}}
        future = self._send(
            self._mux_socket,
            "execute_request",
            content=content,
            buffers=[pickle.dumps(what)],  # not in the code, which IPython parses several times
            ident=self._engines[engine].encode(),
            track_outstanding=True,
        )
        self._rank_by_request[future.msg_id] = engine
        self.stalls.pop(engine, None)
        future.add_done_callback(self._on_reply)
        return future

    def _on_reply(self, future: Future) -> None:
        """Complete a request for ipyparallel, which waits for a status message that our engines do not send."""
        self._rank_by_request.pop(future.msg_id, None)
        if not future.output.done():
            future.output.set_result(None)

    def new_output(self) -> list[tuple[int, str]]:
        """Return the output of running cells that has arrived since the last call, as (rank, text)."""
        printed, self._unshown_output = self._unshown_output, []
        return printed

    def _send(self, socket: zmq.Socket, *args, **kwargs) -> Future:
        # ipyparallel 9.2 sends on the socket directly, bypassing its stream. If a reply arrives at that
        # moment, the stream is not notified, and the reply is never read. Hence the flush.
        future = super()._send(socket, *args, **kwargs)
        stream = self._mux_stream if socket is self._mux_socket else self._control_stream
        self._io_loop.add_callback(stream.flush)
        return future

    def flush_replies(self) -> None:
        """Read replies of which the streams were not notified, see `_send`."""
        for stream in (self._mux_stream, self._control_stream):
            self._io_loop.add_callback(stream.flush)

    def interrupt(self, engines: list[int]) -> list[Future]:
        """Interrupt engines, as Ctrl-C would; a future is done once its engine has acknowledged the interrupt."""
        identities = self._build_targets(engines)[0] if engines else []
        interrupt_futures = [self._send(self._control_stream, "interrupt_request", content={}, ident=identity) for identity in identities]
        self._pending_interrupts.extend(interrupt_futures)
        return interrupt_futures

    def wait_for_interrupts(self, timeout: float) -> None:
        """Wait until all interrupts are acknowledged: one that a busy rank takes late must not hit its next request."""
        waiting = list(self._pending_interrupts)
        self.flush_replies()
        wait(waiting, timeout)
        # A lost one is not waited for again.
        self._pending_interrupts = [future for future in self._pending_interrupts if future not in waiting]

    def _stop_scheduling_tasks(self) -> None:
        """Do nothing when an engine disappears: there is no task farming here, and `connection` reports the end of a rank."""

    def _handle_apply_reply(self, msg: dict) -> None:
        if msg["content"].get("status") == "ok":  # the course never sends apply requests, whose replies are pickles
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
        """Return the rank's reply, or None if it cannot be read: the rank was interrupted, or has died."""
        try:
            shown = future.result(0)._content["user_expressions"]["reply"]
            return serialization.loads(shown["data"]["text/plain"])
        except Exception:
            return None


def connect(file: str, timeout: float = 30) -> Client:
    """Connect to the controller that wrote this connection file.

    Parameters
    ----------
    file : str
    timeout : float
        Seconds.
    """
    log = get_logger()
    before, log.disabled = log.disabled, True  # with encryption, it warns that messages are not signed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Client(file, timeout=timeout)
    finally:
        log.disabled = before
