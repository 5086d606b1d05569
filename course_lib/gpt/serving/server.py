"""A server on loopback with OpenAI's completions: rank 0 talks to clients, and all ranks take the same steps.

Before each step, rank 0 broadcasts which texts have come and which have ended. Between steps it answers clients, in the same thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
from socket import socket

import numpy as np
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.web import Application, RequestHandler

from course_lib.gpt.serving.completions import MODEL_NAME, Answer, BadRequest, read_request
from course_lib.gpt.serving.engine import Engine
from course_lib.gpt.serving.model import Text

ADDRESS = "127.0.0.1"
HOSTS = "127.0.0.1", "localhost"  # names by which a client on this machine may call the server
MAX_BODY_BYTES, MAX_QUEUE = 1 << 20, 256  # of a request; requests at a time
IDLE_SECONDS, BODY_SECONDS = 60, 10  # for which a client may keep the server waiting for a request, and for its body
STOP = -1  # instead of a length: the server ends


class Client:
    """A request under way.

    Attributes
    ----------
    pieces : asyncio.Queue
        The next piece of text and why the answer ends with it, if it does; or an Exception.
    """

    def __init__(self, number: int, answer: Answer):
        self.number, self.answer, self.pieces = number, answer, asyncio.Queue()


class Server:
    """The requests on rank 0.

    Parameters
    ----------
    engine : Engine

    Attributes
    ----------
    clients : dict of int to Client
        Requests under way, by the number of their text.
    most : int
        Most tokens of a text, with its prompt.
    tokens : int
        Tokens generated so far, for all texts.
    """

    def __init__(self, engine: Engine):
        self.engine, self.clients, self.count, self.tokens = engine, {}, 0, 0
        cache = engine.cache
        self.most = min(engine.model.sizes.length, cache.blocks * cache.block_size)
        self.new: list[dict] = []
        self.ended: list[int] = []
        self.wake, self.stopped = asyncio.Event(), False

    def ask(self, body: bytes) -> Client:
        """Take on a request; BadRequest if it cannot be answered."""
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            raise BadRequest("The body is not valid JSON.") from None
        asked = read_request(value, self.most)
        if len(self.clients) >= MAX_QUEUE:
            raise BadRequest(f"{MAX_QUEUE} requests are being answered or wait; try again later.", status=429)
        self.count += 1
        client = self.clients[self.count] = Client(self.count, Answer(asked))
        seed = secrets.randbits(32) if asked.seed is None else asked.seed
        self.new.append(dict(number=self.count, tokens=asked.prompt, limit=asked.limit, temperature=asked.temperature, seed=seed))
        self.wake.set()
        return client

    def end(self, client: Client) -> None:
        """Forget a request; if its text goes on, it ends before the next step."""
        if self.clients.pop(client.number, None) and client.answer.finished != "length":
            self.ended.append(client.number)
            self.wake.set()

    def stop(self) -> None:
        """End the server before the next step."""
        self.stopped = True
        self.wake.set()

    def blocks_in_use(self) -> int:
        """Number of the cache's blocks that texts have."""
        cache = self.engine.cache
        return sum(len(np.unique(cache.slots(number) // cache.block_size)) for number in self.engine.texts)

    async def run(self) -> None:
        """Take steps until `stop`; on this rank."""
        batch: list[Text] = []
        while not self.stopped:
            if not (batch or self.engine.texts or self.new or self.ended):  # after the last batch, one more step frees its blocks
                self.wake.clear()
                await self.wake.wait()
                continue
            changes, self.new, self.ended = {"new": self.new, "ended": self.ended}, [], []
            _broadcast(self.engine.comm, changes)
            refused, batch = take_step(self.engine, changes)
            for number, why in refused.items():
                if number in self.clients:
                    self.clients[number].pieces.put_nowait(BadRequest(why))
            self.tokens += len(batch)
            for text in batch:
                if client := self.clients.get(text.number):
                    client.pieces.put_nowait((client.answer.add(text.tokens[-1]), client.answer.finished))
                    if client.answer.finished == "stop":
                        self.end(client)
            await asyncio.sleep(0)  # the clients' turn


def _broadcast(comm: object, changes: dict) -> None:
    words = json.dumps(changes).encode()
    comm.Bcast(np.array([len(words)]), root=0)
    comm.Bcast(np.frombuffer(words, np.uint8).copy(), root=0)


def follow(engine: Engine) -> None:
    """Take the same steps as rank 0, until it stops; on the other ranks."""
    while True:
        length = np.empty(1, np.int64)
        engine.comm.Bcast(length, root=0)
        if length[0] == STOP:
            return
        words = np.empty(int(length[0]), np.uint8)
        engine.comm.Bcast(words, root=0)
        take_step(engine, json.loads(words.tobytes()))


def take_step(engine: Engine, changes: dict) -> tuple[dict[int, str], list[Text]]:
    """Add and end texts, and take a step; return the refused ones with the reason, and the batch. The same on all ranks.

    Raises
    ------
    RuntimeError
        The scheduler returns nothing to do, although a text waits.
    """
    refused = {}
    for one in changes["new"]:
        try:
            engine.add(Text(one["number"], list(one["tokens"]), one["limit"]), one["temperature"], one["seed"])
        except ValueError as error:
            refused[one["number"]] = str(error)
    for number in changes["ended"]:
        if text := engine.texts.get(number):
            text.ended = True
    going_on = [number for number, text in engine.texts.items() if not text.done]
    batch = engine.step()
    if going_on and not batch:
        raise RuntimeError(f"Scheduler.next_batch returned no text, although {len(going_on)} are not done.")
    return refused, batch


class Handler(RequestHandler):
    """Common part of all addresses: JSON, errors as OpenAI's clients read them, and no other hosts."""

    server: Server

    def initialize(self, server: Server) -> None:
        self.server = server

    def prepare(self) -> None:
        if self.request.host_name not in HOSTS:  # a page of the internet whose name leads here
            self.fail(403, f"this server answers to {' and '.join(HOSTS)} only.")

    def fail(self, status: int, message: str, param: str | None = None) -> None:
        """Answer with an error."""
        self.set_status(status)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.finish({"error": {"message": message, "type": kind, "param": param, "code": None}})

    def write_error(self, status_code: int, **kwargs: object) -> None:
        there = "POST /v1/completions, GET /v1/models, GET /health"
        said = {
            404: f"there is nothing at {self.request.path[:100]}; there is {there}.",
            405: f"not with {self.request.method}; there is {there}.",
        }
        self.fail(status_code, said.get(status_code, self._reason))


class Completions(Handler):
    """``POST /v1/completions``."""

    client: Client | None = None

    async def post(self) -> None:
        """Answer a request, piece by piece if it wants that."""
        try:
            self.client = client = self.server.ask(self.request.body)
            finished = None
            while not finished:
                piece, finished = await self._next(client)
                if client.answer.asked.stream and (piece or finished):
                    self.set_header("Content-Type", "text/event-stream")
                    self.write(f"data: {json.dumps(client.answer.as_json(piece, finished))}\n\n")
                    await self.flush()
            self.finish("data: [DONE]\n\n" if client.answer.asked.stream else client.answer.as_json())
        except BadRequest as error:
            if not self._headers_written:  # the connection of a stream that has begun is closed instead
                self.fail(error.status, str(error), error.param)
        except StreamClosedError:
            pass  # on_connection_close has been called
        finally:
            self.on_connection_close()

    @staticmethod
    async def _next(client: Client) -> tuple[str, str | None]:
        piece = await client.pieces.get()
        if isinstance(piece, Exception):
            raise piece
        return piece

    def on_connection_close(self) -> None:
        """Forget the request, as its client has gone, or has its answer."""
        if self.client:
            self.server.end(self.client)
            self.client.pieces.put_nowait(StreamClosedError())


class Models(Handler):
    """``GET /v1/models``."""

    def get(self) -> None:
        """List the one model."""
        self.finish({"object": "list", "data": [{"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "you"}]})


class Health(Handler):
    """``GET /health``."""

    def get(self) -> None:
        """Say what is going on."""
        server = self.server
        blocks = dict(blocks=server.engine.cache.blocks, blocks_in_use=server.blocks_in_use())
        self.finish({"status": "ok", "texts": len(server.engine.texts), "tokens": server.tokens, **blocks})


class Missing(Handler):
    """Any other address."""

    def prepare(self) -> None:
        """Say what there is."""
        self.send_error(404)


async def serve(engine: Engine, sockets: list[socket]) -> None:
    """Serve until SIGINT or SIGTERM; on rank 0.

    Parameters
    ----------
    engine : Engine
    sockets : list of socket.socket
        Where clients connect, as `tornado.netutil.bind_sockets` returns them.
    """
    server = Server(engine)
    pages = (r"/v1/completions", Completions), (r"/v1/models", Models), (r"/health", Health), (r".*", Missing)
    app = Application([(path, page, {"server": server}) for path, page in pages], log_function=lambda handler: None)
    limits = dict(max_body_size=MAX_BODY_BYTES, max_buffer_size=2 * MAX_BODY_BYTES)
    http = HTTPServer(app, idle_connection_timeout=IDLE_SECONDS, body_timeout=BODY_SECONDS, **limits)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    try:
        http.add_sockets(sockets)
        await server.run()
    finally:
        http.stop()
        for client in server.clients.values():
            client.pieces.put_nowait(BadRequest("The server ends.", status=503))
        await asyncio.sleep(0.05)  # for these answers
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(http.close_all_connections(), 1)
        if server.stopped:
            engine.comm.Bcast(np.array([STOP]), root=0)
