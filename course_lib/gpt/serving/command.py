"""``python -m course_lib.gpt serve``: the command line of the server."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from socket import socket

from tornado.netutil import bind_sockets

from course_lib.gpt.broadcast_text import call_on_rank0
from course_lib.gpt.functions import FUNCTIONS_DIR, load_functions
from course_lib.gpt.serving.engine import FUNCTIONS, Engine
from course_lib.gpt.serving.load import load_model
from course_lib.gpt.serving.server import ADDRESS, follow, serve
from course_lib.gpt.settings import SettingsError

PORT = 8034


def parse_args(argv: list[str]) -> argparse.Namespace:
    """Parse the words after ``serve``."""
    parser = argparse.ArgumentParser(
        prog="python -m course_lib.gpt serve", description="Serve a trained GPT on this machine; its ranks are tensor parallel."
    )
    parser.add_argument("--out", type=Path, default=Path("gpt_run"), help="folder of the run, with its checkpoint (gpt_run)")
    parser.add_argument("--functions", type=Path, default=FUNCTIONS_DIR, help="folder with your functions (my_work)")
    parser.add_argument("--port", type=int, default=PORT, help=f"port on {ADDRESS}; 0 for any that is free ({PORT})")
    parser.add_argument("--blocks", type=int, default=128, help="blocks of the cache (128)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens in a block (16)")
    parser.add_argument("--most", type=int, default=8, help="most texts in a batch (8)")
    return parser.parse_args(argv)


def run(a: argparse.Namespace, comm: object, first: bool) -> None:
    """Load the model, and serve until SIGINT or SIGTERM; collective.

    Raises
    ------
    SettingsError
        A word of the command is wrong, or there is no model. All ranks raise it.
    """
    for name in ("blocks", "block_size", "most"):
        if getattr(a, name) < 1:
            raise SettingsError(f"--{name.replace('_', '-')} must be at least 1; got {getattr(a, name)}.")
    if not 0 <= a.port < 65536:
        raise SettingsError(f"--port must be from 0 to 65535; got {a.port}.")
    functions = load_functions(a.functions, comm, "load", *FUNCTIONS)
    model, step = load_model(a.out, functions, comm)
    engine, sockets = Engine(model, functions, comm, a.blocks, a.block_size, a.most), []
    call_on_rank0(comm, lambda: sockets.extend(_bind(a.port)) or "", SettingsError)
    if not first:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # rank 0 says when to stop
        follow(engine)
        return
    address = f"http://{ADDRESS}:{sockets[0].getsockname()[1]}"
    ask = '{"prompt": "def ", "max_tokens": 60, "stream": true}'
    print(f"Serving {a.out} (step {step}, {comm.Get_size()} tensor parallel ranks) on {address}; Ctrl-C ends it. Try:")
    print(f"curl -N {address}/v1/completions -d '{ask}'", flush=True)
    asyncio.run(serve(engine, sockets))
    print("The server has stopped.", flush=True)


def _bind(port: int) -> list[socket]:
    try:
        return bind_sockets(port, ADDRESS)
    except OSError as error:
        raise SettingsError(f"port {port} on {ADDRESS} cannot be used: {error.strerror}. Choose another one with --port.") from None
