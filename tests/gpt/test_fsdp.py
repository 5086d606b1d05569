"""A model as a row of blocks, several arrays as one, and gathers that let go of what they brought."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib import cluster, memory
from course_lib.autograd import Linear, Sequential, Tanh, Tensor, no_grad
from course_lib.cluster.replies import RanksError
from course_lib.collectives.instrumentation.recording import recording
from course_lib.gpt.fsdp import profile, wrapping
from course_lib.gpt.fsdp.flat_buffer import FlatBuffer
from course_lib.gpt.fsdp.wrapping import hook, units
from course_lib.gpt.model.decoder import Sizes, layers, loss_of
from course_lib.sandbox import bubblewrap

shapes = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=4)


@given(shapes, st.integers(1, 5))
def test_arrays_come_out_of_a_flat_one_as_they_went_in(shapes, ranks):
    arrays = [np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape) for shape in shapes]
    flat = FlatBuffer(arrays, ranks)
    whole = flat.join(arrays)
    total = sum(a.size for a in arrays)
    assert whole.size % ranks == 0 and 0 <= whole.size - total < ranks and not np.any(whole[total:])
    for array, found in zip(arrays, flat.cut(whole), strict=True):
        assert np.array_equal(array, found) and np.shares_memory(found, whole)
    assert not np.any(flat.join([None] * len(arrays)))


@pytest.mark.parametrize("arrays, named", [([], "no arrays"), ([np.ones(2), np.ones(2, np.float32)], "float32, float64")])
def test_a_flat_array_has_one_dtype(arrays, named):
    with pytest.raises(ValueError, match=f"one dtype; got {named}"):
        FlatBuffer(arrays, 2)


class Notes:
    """Writes down who works."""

    def __init__(self):
        self.said = []

    def begin(self):
        self.said.append("begin")

    def before(self, i, back):
        self.said.append(f"before {i}{' back' * back}")

    def after(self, i, back):
        self.said.append(f"after {i}{' back' * back}")

    def end(self, back):
        self.said.append(f"end{' back' * back}")


def test_a_gpt_whose_blocks_tell_has_the_same_gradients():
    sizes, tokens = Sizes(vocabulary=7, width=8, heads=2, depth=2, length=5), np.random.default_rng(0).integers(0, 7, (2, 5))
    plain, told = (Sequential(*layers(sizes, dtype=np.float64)) for _ in "ab")
    notes = Notes()
    hook(told, notes)
    for model in (plain, told):
        loss_of(model(tokens), tokens).backward()
    for (name, a), (_, b) in zip(plain.named_parameters(), told.named_parameters(), strict=True):
        assert np.allclose(a.grad, b.grad, rtol=1e-12, atol=1e-15), name
    there, back = (
        [f"{when} {i}{way}" for i in order for when in ("before", "after")] for way, order in (("", range(4)), (" back", range(3, -1, -1)))
    )
    assert notes.said == ["begin", *there, *back, "end back"]
    notes.said.clear()
    with no_grad():
        told(tokens)
    assert notes.said == ["begin", *there, "end"]


def test_a_block_that_is_there_twice_is_one_and_what_several_share_is_the_rest():
    one, other = Linear(2, 2), Linear(2, 2, bias=False)
    other.weight = one.weight
    blocks, rest = units(Sequential(one, Tanh(), other, one))
    assert [(block, [p.shape for p in own]) for block, own in blocks] == [(one, [(2,)])]
    assert [p is one.weight for p in rest] == [True]
    assert units(one) == ([], [one.weight, one.bias])


PASS = """
from course_lib.engine import traffic_gates

def work():
    x = np.ones(4)
    everyone.Allreduce(np.ones(4), x)
    return traffic_gates.pass_gate()
"""


@pytest.fixture(params=["together", "apart"])
def two(request, monkeypatch):
    if request.param == "apart":
        monkeypatch.setenv(bubblewrap.ISOLATION_VARIABLE, bubblewrap.UNSANDBOXED)
    ranks = cluster.start(2)
    ranks.run("import numpy as np\nfrom course_lib.collectives import Communicator\neveryone = Communicator()")
    yield ranks
    ranks.stop()


def test_a_gate_opens_between_two_bounds(two):
    two.run(PASS)
    assert two.call("work", gates=[(32, 5.0, 32)]) == [5.0, 5.0]
    with pytest.raises(RanksError, match="TooLate: 32 bytes have been sent so far; expected at most 31"):
        two.call("work", gates=[(30, 5.0, 31)])
    with pytest.raises(RanksError, match="TooEarly: 32 bytes have been sent so far; expected at least 33"):
        two.call("work", gates=[(33, 5.0, 40)])


LETS_GO = """
import gc
import weakref

def kept():
    gc.disable()
    try:
        left = []
        for start in (everyone.Iallgather, everyone.Ireduce_scatter, everyone.Iallreduce):
            whole, part = np.ones(4), np.ones(4 if start == everyone.Iallreduce else 2)
            request = start(part, whole) if start == everyone.Iallgather else start(whole, part)
            request.Wait()
            left += [weakref.ref(whole), weakref.ref(part)]
            del whole, part, request
        return [ref() is not None for ref in left]
    finally:
        gc.enable()
"""


def test_what_does_not_block_lets_go_of_its_arrays_when_it_has_ended(two):
    two.run(LETS_GO)
    assert two.call("kept") == [[False] * 6] * 2


BEGINS = """
import numpy as np

def go(bad):
    group = everyone.Split(color=0, key=everyone.Get_rank())
    whole, part = np.empty(4), np.full(2, float(everyone.Get_rank()))
    if bad and everyone.Get_rank() == 1:
        raise ValueError("oops")
    request = group.Iallgather(part, whole)
    if bad:
        raise ValueError("oops")
    request.Wait()
    return whole

def alone():
    return everyone.Iallgather(np.ones(2), np.empty(4)) if everyone.Get_rank() == 0 else None
"""


@pytest.mark.parametrize("cell", ["go(True)", "request = alone()"])
def test_a_collective_that_only_some_have_begun_meets_nothing_in_the_next_cell(two, cell):
    two.run(BEGINS)
    two.run(cell)
    assert [found.tolist() for found in two.call("go", dict(bad=False), limit=20)] == [[0.0, 0.0, 1.0, 1.0]] * 2


def test_a_message_of_one_call_does_not_meet_the_next(two):
    two.run(
        "import numpy as np\ndef send(value):\n    if everyone.Get_rank():\n        everyone.Isend(np.full(value, float(value)), dest=0)\n"
    )
    two.run(
        "def both(value):\n    send(value)\n    x = np.empty(value)\n    everyone.Get_rank() or everyone.Recv(x, source=1)\n    return x\n"
    )
    two.call("send", dict(value=2))
    assert two.call("both", dict(value=3), limit=20)[0].tolist() == [3.0] * 3


def test_memory_that_is_given_back_is_not_taken_from_what_was_free():
    memory.release_freed_at_once(False)
    many = [np.ones(1 << 17) for _ in range(30)]
    last = np.ones(1000)
    many.clear()
    garbage = [np.ones(1 << 21)]
    garbage.append(garbage)  # only the collector frees it
    del garbage
    memory.release_freed_at_once(True)
    try:
        gc.collect()
        before = _resident()
        array = np.ones(1 << 20)
        assert _resident() - before > 0.9 * array.nbytes
        del array
        assert abs(_resident() - before) < 1 << 20
    finally:
        memory.release_freed_at_once(False)
    assert last.size == 1000


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_trace_names_the_blocks_of_a_step():
    calls = []

    class Wrapped(wrapping.Hooked):
        def begin(self):
            pass

        def before(self, i, back):
            calls.append(("before", i, back))

        def after(self, i, back):
            calls.append(("after", i, back))

        def end(self, back):
            pass

    model = profile.name_blocks(Wrapped(Sequential(*(Linear(2, 2) for _ in range(3)))))
    with recording() as recorder:
        model(Tensor(np.ones((1, 2), np.float32), requires_grad=True)).sum().backward()
    spans = [(name, of) for kind, name, *_, of in recorder.events if kind == "span"]
    assert spans == [("forward", f"block {i}") for i in range(3)] + [("backward", f"block {i}") for i in (2, 1, 0)]
    assert calls == [(what, i, back) for back in (False, True) for i in (range(3), (2, 1, 0))[back] for what in ("before", "after")]


def test_after_is_called_when_a_blocks_gradients_are_complete():
    from course_lib.autograd import Embedding

    words, last, said = Embedding(5, 3, np.random.default_rng(0), np.float64), Linear(3, 2), []
    notes = Notes()
    notes.after = lambda i, back: said.append((i, back, words.weight.grad is not None, last.weight.grad is not None))
    model = Sequential(words, last)
    hook(model, notes)
    model(np.array([[1, 2, 1]])).sum().backward()
    assert said[2:] == [(1, True, False, True), (0, True, True, True)]
