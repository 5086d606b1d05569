"""Serving: the model in parts, attention next to kept keys, the server's requests, and schedulers on a simulated clock."""

import asyncio
import signal
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.netutil import bind_sockets

from course_lib.autograd import Sequential
from course_lib.check.serving.reference import full_forward, random_weights
from course_lib.gpt.model import Sizes, layers
from course_lib.gpt.serving import ServingModel, Text, attend, draw_weights, paged_attention
from course_lib.gpt.serving import server as server_module
from course_lib.gpt.serving.completions import Answer, Asked, BadRequest, read_request
from course_lib.gpt.serving.model import multiply, named_weights, part
from course_lib.gpt.serving.server import Server, take_step
from course_lib.gpt.serving.simulation import FREE, KEPT, StaticScheduler, StepCost, arrivals, simulate

SIZES = Sizes(vocabulary=12, width=16, heads=4, depth=2, length=10)


def test_the_model_in_parts_is_the_model_that_was_trained():
    model, tokens = layers(SIZES, seed=3, dtype=np.float64), [5, 0, 11, 3, 3, 7]
    weights = named_weights(model)
    want = Sequential(*model)(np.array([tokens])).data[0]
    assert np.allclose(full_forward(weights, SIZES, tokens)[0], want, rtol=0, atol=1e-12)
    for n in (1, 2, 4):
        ranks = [ServingModel(SIZES, part(weights, n, r), n, r) for r in range(n)]
        x = ranks[0].embed(tokens, range(6))
        for i in range(SIZES.depth):
            x = x + sum(one.blocks[i].out(attend(*one.blocks[i].qkv(x))) for one in ranks)
            x = x + sum(one.blocks[i].mlp(x) for one in ranks)
        assert np.allclose(np.concatenate([one.logits(x) for one in ranks], axis=1), want, rtol=0, atol=1e-12)
        assert ranks[-1].token_shape == (2, 2, 4 // n, 4) and ranks[-1].columns == range(12 - 12 // n, 12)


def test_ranks_that_cannot_share_a_model_get_a_sentence():
    with pytest.raises(ValueError, match="3 ranks must divide the 4 heads"):
        ServingModel(SIZES, draw_weights(SIZES), 3, 0)


def test_the_last_queries_see_what_they_see_among_all():
    q, k, v = np.random.default_rng(0).standard_normal((3, 7, 2, 3))
    whole = attend(q, k, v)
    for count in range(1, 8):
        assert np.allclose(attend(q[-count:], k, v), whole[-count:])
    with pytest.raises(ValueError, match="no fewer"):
        attend(q, k[:3], v[:3])


def test_paged_attention_of_several_texts_is_attention_of_each():
    random = np.random.default_rng(0)
    keys, values = random.standard_normal((2, 40, 2, 3))
    slots = np.split(random.permutation(40), [1, 8, 8 + 20])
    q = random.standard_normal((4, 2, 3))
    want = np.concatenate([attend(q[[i]], keys[own], values[own]) for i, own in enumerate(slots)])
    assert np.allclose(paged_attention(q, keys, values, slots), want, rtol=0, atol=1e-14)
    assert paged_attention(q.astype(np.float32), keys.astype(np.float32), values.astype(np.float32), slots).dtype == np.float32
    with pytest.raises(ValueError, match=r"slots one array a text; got .* and 3 texts with \[1, 7, 20\] slots"):
        paged_attention(q, keys, values, slots[:3])
    with pytest.raises(ValueError, match=r"\[0, 7, 20, 12\] slots"):
        paged_attention(q, keys, values, [slots[0][:0], *slots[1:]])


@pytest.mark.parametrize("rows", [1, 2, 8, 12, 13])
@pytest.mark.parametrize("shape", [(256, 512), (511, 1021), (7, 3)])
def test_a_product_in_slices_is_the_product(rows, shape):
    random = np.random.default_rng(rows)
    x, matrix = random.standard_normal((rows, shape[0])), random.standard_normal(shape)
    assert np.allclose(multiply(x, matrix), x @ matrix, rtol=0, atol=1e-11)


def test_the_checks_weights_are_such_that_every_array_counts():
    random = np.random.default_rng(0)
    weights, tokens = random_weights(random, SIZES, np.float64), [1, 2, 3, 4]
    want = full_forward(weights, SIZES, tokens)[0]
    for name, array in weights.items():
        changed = full_forward(weights | {name: np.zeros_like(array)}, SIZES, tokens)[0]
        assert np.abs(changed - want).max() > 1e-3, name


class Slots:
    """A cache in which each text has a block for each token, for schedulers that make sure that all fits."""

    def __init__(self, blocks=99, block_size=4):
        self.blocks, self.block_size, self.held = blocks, block_size, {}

    def allocate(self, number, tokens):
        self.held[number] = tokens
        return True

    def append(self, number):
        return self.allocate(number, self.held[number] + 1)

    def free(self, number):
        self.held.pop(number, None)

    def slots(self, number):
        return np.arange(self.held.get(number, 0)) + 20 * number


def test_static_batching_waits_for_the_longest_text():
    coming = [(0.0, Text(0, [0] * 3, 2)), (0.0, Text(1, [0], 5)), (0.0, Text(2, [0], 1))]
    found = simulate(StaticScheduler(Slots(), 2), coming, StepCost(1.0, 0.0, 0.0), watch=True)
    assert found["ended"] == [2, 5, 6] and found["first"] == [1, 1, 6] and found["rate"] == 8 / 6
    assert [(number, kind) for number, kind, *_ in found["spans"]][:4] == [(0, "prefill"), (1, "prefill"), (0, "decode"), (1, "decode")]
    assert found["owners"][4].tolist().count(KEPT) == 1 and found["owners"][0].tolist().count(FREE) == 97


def test_static_batching_never_takes_more_than_fits():
    blocks = Slots(blocks=4)
    scheduler = StaticScheduler(blocks, 9)
    for i in range(3):
        scheduler.add(Text(i, [0] * 5, 3))  # two blocks each
    assert [len(batch) for batch in scheduler.next_batch()] == [2, 0]


def test_a_scheduler_that_has_nothing_to_do_is_an_error():
    class Idle(StaticScheduler):
        def next_batch(self):
            return [], []

    with pytest.raises(RuntimeError, match="no text, although 1 are not done"):
        simulate(Idle(Slots(), 1), [(0.0, Text(0, [0], 1))])


def test_arrivals_are_in_order_and_at_the_rate():
    found = arrivals(np.random.default_rng(0), 4000, 20.0)
    times = [at for at, _ in found]
    assert times == sorted(times) and times[-1] == pytest.approx(200, rel=0.1)
    assert all(4 <= text.prompt <= 40 and 2 <= text.limit <= 80 for _, text in found)


@given(st.text(min_size=1, max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=4), st.integers(0, 5))
def test_pieces_make_up_the_text_before_the_first_stop(text, stops, extra):
    data = text.encode(errors="replace")
    answer, found = Answer(Asked([1], len(data) + extra, stop=[s.encode(errors="replace") for s in stops])), ""
    for byte in data:
        found += answer.add(byte)
        if answer.finished:
            break
    else:
        for _ in range(extra):
            found += answer.add(0)
            if answer.finished:
                break
    whole = data + bytes(extra)
    # A stop sequence ends the text as soon as it is complete.
    ends = [k for k in range(len(whole) + 1) if any(whole[:k].endswith(s.encode(errors="replace")) for s in stops)]
    if ends:
        seen = whole[: ends[0]]
        want = seen[: min(seen.find(s.encode(errors="replace")) for s in stops if s.encode(errors="replace") in seen)]
    else:
        want = whole
    assert found == want.decode(errors="replace") and answer.finished == ("stop" if ends else "length")


def test_a_request_has_defaults():
    asked = read_request({"prompt": ["é"], "max_tokens": None, "seed": 5, "stop": ["x", "y"], "unknown": 1}, 20)
    assert asked == Asked([195, 169], 16, 1.0, 5, [b"x", b"y"], False)
    with pytest.raises(BadRequest, match="room for 20"):
        read_request({"prompt": "abcde"}, 20)


class StubComm:
    """Notes what rank 0 broadcasts."""

    def __init__(self):
        self.told = []

    def Bcast(self, array, root):
        self.told.append(array.tolist())


class StubEngine:
    """An engine whose texts get the letter a in each step."""

    def __init__(self):
        self.comm, self.texts, self.cache = StubComm(), {}, Slots()
        self.model = type("", (), {"sizes": SIZES})

    def add(self, text, temperature, seed):
        if text.limit == 7:
            raise ValueError("seven is too many")
        self.texts[text.number] = text
        self.cache.allocate(text.number, len(text.tokens))

    def step(self):
        batch = [text for text in self.texts.values() if not text.done]
        for number in [number for number, text in self.texts.items() if text.done]:
            self.cache.free(number)
            del self.texts[number]
        for text in batch:
            text.tokens.append(97)
            self.cache.append(text.number)
        return batch


def run_steps(server, count):
    """Let a server take this many steps at most."""
    engine, step = server.engine, server.engine.step

    def counted():
        nonlocal count
        count -= 1
        if not count:
            server.stop()
        return step()

    engine.step = counted
    asyncio.run(asyncio.wait_for(server.run(), 10))
    engine.step, server.stopped = step, False


def test_a_client_that_goes_away_ends_its_text_in_the_middle():
    server = Server(StubEngine())
    gone, stays = server.ask(b'{"prompt": "xy", "max_tokens": 6}'), server.ask(b'{"prompt": "z", "max_tokens": 6}')
    run_steps(server, 2)
    text = server.engine.texts[gone.number]
    assert server.blocks_in_use() and len(text.tokens) == 4
    server.end(gone)
    run_steps(server, 1)
    assert list(server.engine.texts) == [stays.number] and len(text.tokens) == 4 and list(server.engine.cache.held) == [stays.number]
    run_steps(server, 4)  # the last one is empty, and frees what is left
    assert stays.answer.finished == "length" and not server.engine.cache.held


def test_a_client_that_goes_away_before_its_first_step_gets_none():
    server = Server(StubEngine())
    server.end(server.ask(b'{"prompt": "x"}'.replace(b"}", b', "max_tokens": 2}')))
    run_steps(server, 1)
    assert not server.engine.texts and not server.clients


def test_too_many_requests_at_a_time_get_a_sentence(monkeypatch):
    monkeypatch.setattr("course_lib.gpt.serving.server.MAX_QUEUE", 1)
    server = Server(StubEngine())
    server.ask(b'{"prompt": "x", "max_tokens": 2}')
    with pytest.raises(BadRequest, match="1 requests are being answered") as error:
        server.ask(b'{"prompt": "x", "max_tokens": 2}')
    assert error.value.status == 429


def test_a_body_that_is_nested_too_deep_is_no_json():
    with pytest.raises(BadRequest, match="not valid JSON"):
        Server(StubEngine()).ask(b"[" * 100_000)


def test_a_text_that_the_scheduler_refuses_is_answered():
    server = Server(StubEngine())
    client = server.ask(b'{"prompt": "x", "max_tokens": 7}')
    run_steps(server, 1)
    error = client.pieces.get_nowait()
    assert isinstance(error, BadRequest) and str(error) == "seven is too many"


def test_a_scheduler_that_stops_in_the_middle_ends_the_server_with_a_sentence():
    engine = StubEngine()
    engine.step = list
    told = dict(new=[dict(number=1, tokens=[1], limit=2, temperature=0.0, seed=0)], ended=[])
    with pytest.raises(RuntimeError, match="next_batch returned no text, although 1 are not done"):
        take_step(engine, told)


def test_a_long_stop_sequence_costs_no_more_than_what_has_been_generated():
    class Counted(bytes):
        slices = 0

        def __getitem__(self, key):
            Counted.slices += 1
            return super().__getitem__(key)

    answer = Answer(Asked([1], 3, stop=[Counted(b"ab" * 10_000)]))
    assert [answer.add(token) for token in b"aba"] == ["", "", "aba"] and Counted.slices <= 12


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"]
)
def test_a_client_that_sends_no_whole_request_is_sent_away(sent, monkeypatch):
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(server_module, "BODY_SECONDS", 0.2)
    sockets = bind_sockets(0, "127.0.0.1")

    def client():
        with socket.create_connection(sockets[0].getsockname(), timeout=10) as connection:
            connection.sendall(sent)
            return connection.recv(100)

    async def serve_client():
        serving = asyncio.create_task(server_module.serve(StubEngine(), sockets))
        got = await asyncio.to_thread(client)
        signal.raise_signal(signal.SIGINT)
        await serving
        return got

    assert asyncio.run(serve_client()) == b""
