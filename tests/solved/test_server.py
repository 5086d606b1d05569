"""`python -m course_lib.gpt serve`, with part 34's solution, on a model that two ranks have trained."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from machine import mpiexec

from course_lib import students
from course_lib.check.serving.reference import full_forward
from course_lib.gpt.serving.load import load_model

SMALL = dict(width=32, heads=4, depth=2, length=160, batch=4, steps=30, every=30)


@pytest.fixture(scope="module")
def trained(functions, tmp_path_factory):
    """A run's folder, with its checkpoint."""
    folder = tmp_path_factory.mktemp("served") / "run"
    words = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    done = mpiexec(2, "-m", "course_lib.gpt", "--tp", "2", *words, "--functions", str(functions), "--out", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def command(n, *words):
    return [str(Path(sys.executable).with_name("mpiexec")), "-n", str(n), sys.executable, "-m", "course_lib.gpt", "serve", *words]


@contextlib.contextmanager
def serving(n, folder, functions, *words):
    """A server on n ranks: its process and its port; at the end it gets a Ctrl-C, and must leave nothing behind."""
    full = command(n, "--out", str(folder), "--functions", str(functions), "--port", "0", *words)
    process = subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, line + process.stderr.read()
        family = psutil.Process(process.pid).children(recursive=True)
        yield SimpleNamespace(process=process, port=int(found[1]), line=line)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
        assert process.returncode == 0 and "The server has stopped." in out and "Traceback" not in errors, errors
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(found[1]))) != 0
    finally:
        process.kill()
        process.communicate()


def ask(server, path="/v1/completions", body=None, method=None, headers=()):
    """A request's status and the JSON of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
    connection.request(method or ("GET" if body is None else "POST"), path, data, dict(headers))
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def text_of(server, prompt, count, **how):
    status, answer = ask(server, body=dict(prompt=prompt, max_tokens=count, **{"temperature": 0, **how}))
    assert status == 200, answer
    return answer["choices"][0]["text"]


class OneRank:
    """A group of one rank, as far as a model's loading needs it."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def Bcast(self, array, root):
        pass

    def Allgather(self, sent, received):
        np.copyto(received.reshape(sent.shape), sent)

    def Allreduce(self, sent, received, **_):
        np.copyto(received, sent)


@pytest.fixture(scope="module")
def whole(trained, functions):
    """Function that continues a prompt with the whole model, computed anew for each token."""
    model, step = load_model(trained, students.load(functions), OneRank())
    assert step == SMALL["steps"]

    def go_on(prompt, count):
        tokens = list(prompt.encode())
        for _ in range(count):
            tokens.append(int(full_forward(model.weights, model.sizes, tokens)[0][-1].argmax()))
        return bytes(tokens[len(prompt.encode()) :]).decode(errors="replace")

    return go_on


@pytest.mark.slow
def test_texts_are_those_of_the_whole_model_alone_and_in_batches(trained, functions, whole):
    prompts = ["def ", "import numpy as np\n", "x", "    return self.", "class A:\n    pass\n" * 4, "é = 'ü'", "# ", "while True"]
    want = [whole(prompt, 40) for prompt in prompts]
    assert len(set(want)) > 1
    drawn = []
    for n in (1, 2, 4):
        with serving(n, trained, functions, "--blocks", "12", "--block-size", "16", "--most", "3") as server:
            assert f"{n} tensor parallel ranks" in server.line
            assert text_of(server, prompts[0], 40) == want[0]
            with ThreadPoolExecutor(len(prompts)) as pool:  # more than fit into a batch, and into the cache
                assert list(pool.map(lambda prompt: text_of(server, prompt, 40), prompts)) == want
            drawn.append([text_of(server, "def ", 40, temperature=1.2, seed=seed) for seed in (1, 1, 2)])
    first, again, other = drawn[0]
    assert first == again != other and drawn[1] == drawn[2] == drawn[0]


@pytest.fixture(scope="module")
def server(trained, functions):
    with serving(2, trained, functions, "--blocks", "10", "--block-size", "16") as found:
        yield found


def curl(server, body, *words):
    full = ["curl", "-sS", "-N", "-m", "30", f"http://127.0.0.1:{server.port}/v1/completions", "-d", json.dumps(body), *words]
    return subprocess.run(full, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_curl_gets_an_answer_and_a_stream(server, whole):
    body = {"model": "gpt", "prompt": "def ", "max_tokens": 30, "temperature": 0}
    answer = json.loads(curl(server, body, "-H", "Content-Type: application/json"))
    assert answer["object"] == "text_completion" and answer["usage"] == dict(prompt_tokens=4, completion_tokens=30, total_tokens=34)
    assert answer["choices"] == [dict(text=whole("def ", 30), index=0, logprobs=None, finish_reason="length")]
    events = curl(server, body | {"stream": True}).strip().split("\n\n")
    assert events[-1] == "data: [DONE]" and all(event.startswith("data: ") for event in events)
    pieces = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-1]]
    assert "".join(piece["text"] for piece in pieces) == whole("def ", 30) and len(pieces) > 5
    assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert ask(server, "/v1/models")[1]["data"][0]["id"] == "gpt"


@pytest.mark.slow
def test_a_stop_sequence_ends_a_text(server, whole):
    right = whole("def ", 30)
    stop = right[9:11]
    want = right[: right.index(stop)]
    for stream in (False, True):
        found = curl(server, {"prompt": "def ", "max_tokens": 30, "temperature": 0, "stop": [stop, "@@"], "stream": stream})
        events = [json.loads(e.removeprefix("data: ")) for e in found.strip().split("\n\n") if "[DONE]" not in e]
        assert "".join(e["choices"][0]["text"] for e in events) == want
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert settled(server) == (0, 0)


def settled(server):
    """Texts and blocks in use, once they no longer change."""
    deadline = time.monotonic() + 10
    while (now := ask(server, "/health")[1])["texts"] and time.monotonic() < deadline:
        time.sleep(0.02)
    return now["texts"], now["blocks_in_use"]


BAD = {
    "no JSON": ("{", "not valid JSON"),
    "no object": ("[1]", "must be a JSON object"),
    "no prompt": ({}, "prompt must be a text"),
    "an empty prompt": ({"prompt": ""}, "prompt must be a text"),
    "two prompts": ({"prompt": ["a", "b"]}, "one request has one prompt"),
    "too many tokens": ({"prompt": "a" * 100, "max_tokens": 100}, "100 + 100 tokens (a token is a byte), but this server has room for 160"),
    "no tokens": ({"prompt": "a", "max_tokens": 0}, "max_tokens must be a whole number at least 1; got '0'"),
    "half a token": ({"prompt": "a", "max_tokens": 1.5}, "max_tokens must be a whole number"),
    "a truth": ({"prompt": "a", "max_tokens": True}, "max_tokens must be a whole number"),
    "too hot": ({"prompt": "a", "temperature": 3}, "temperature must be a number from 0 to 2"),
    "not a number": ('{"prompt": "a", "temperature": NaN}', "temperature must be a number from 0 to 2"),
    "several answers": ({"prompt": "a", "n": 2}, "n must be 1"),
    "five stops": ({"prompt": "a", "stop": list("abcde")}, "a list of up to 4 texts"),
    "an empty stop": ({"prompt": "a", "stop": ""}, "none of them empty"),
    "a stream of words": ({"prompt": "a", "stream": "yes"}, "stream must be true or false"),
    "a seed below 0": ({"prompt": "a", "seed": -1}, "seed must be a whole number"),
}


@pytest.mark.slow
def test_a_request_that_cannot_be_answered_gets_a_sentence(server):
    for case, (body, said) in BAD.items():
        status, answer = ask(server, body=body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error") and said in answer["error"]["message"], (case, answer)
    for path, method, status in (("/v1/chat", "GET", 404), ("/v1/completions", "GET", 405), ("/v1/completions", "PUT", 405)):
        found, answer = ask(server, path, "x" if method == "PUT" else None, method)
        assert found == status and "there is POST /v1/completions" in answer["error"]["message"]
    assert ask(server, "/health", headers={"Host": "a.page.example"})[0] == 403
    assert text_of(server, "x", 2)


@pytest.mark.slow
def test_the_blocks_of_a_client_that_goes_away_are_free_again(server):
    body = json.dumps({"prompt": "a", "max_tokens": 159, "temperature": 0, "stream": True})  # the whole cache
    before = ask(server, "/health")[1]["tokens"]
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            client.recv(200)  # in the middle
    assert settled(server) == (0, 0)
    assert ask(server, "/health")[1]["tokens"] - before < 20 * 159 / 2
    assert len(text_of(server, "a", 159).encode()) >= 159


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_a_stream(trained, functions):
    with serving(2, trained, functions) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 150, "stream": True}))
        assert connection.getresponse().read(10) == b'data: {"id'


@pytest.mark.slow
def test_a_function_that_raises_ends_the_server_and_is_named(trained, functions, tmp_path):
    for file in functions.glob("*.py"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    text, line = (tmp_path / "serving_impl.py").read_text(), "    slots = [cache.slots(text.number) for text in texts]\n"
    assert line in text
    (tmp_path / "serving_impl.py").write_text(text.replace(line, f"    1 / comm.Get_rank()\n{line}"))
    full = command(2, "--out", str(trained), "--functions", str(tmp_path), "--port", "0")
    process = subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())[1])
        status, answer = ask(SimpleNamespace(port=port), body={"prompt": "a", "max_tokens": 5})
        assert status == 503 and answer["error"] == dict(message="The server ends.", type="server_error", param=None, code=None)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode and "rank 0: ZeroDivisionError" in errors and "rank 1: Traceback" not in errors


FAILS = {
    "no run": (1, ["--out", "nowhere"], "there is no checkpoint in nowhere. Train a model first"),
    "ranks that cannot share": (3, [], "3 ranks cannot share 4 heads"),
    "no blocks": (2, ["--blocks", "0"], "--blocks must be at least 1; got 0"),
    "no such port": (1, ["--port", "70000"], "--port must be from 0 to 65535"),
    "no such folder": (2, ["--functions", "nowhere"], "the folder nowhere with your functions does not exist"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FAILS)
def test_a_command_that_cannot_be_carried_out_gets_one_sentence(case, trained, functions):
    n, words, said = FAILS[case]
    full = command(n, "--out", str(trained), "--functions", str(functions), *words)
    done = subprocess.run(full, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("course_lib.gpt:") == 1 and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_port_that_is_taken_and_missing_functions_get_a_sentence(trained, functions, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        full = command(2, "--out", str(trained), "--functions", str(functions), "--port", str(port))
        done = subprocess.run(full, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and f"port {port} on 127.0.0.1 cannot be used" in done.stderr
    (tmp_path / "transformer_impl.py").write_text((functions / "transformer_impl.py").read_text())
    full = command(1, "--out", str(trained), "--functions", str(tmp_path))
    done = subprocess.run(full, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Finish the notebook 34_serving" in done.stderr and os.path.exists(trained)
