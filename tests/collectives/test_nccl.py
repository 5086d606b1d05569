"""The NCCL transport: what it asks of NCCL (noted, and done by MPI), what it counts, and what it says without CuPy or GPUs."""

import importlib.util
from pathlib import Path

import pytest

SETUP = f"""
import importlib, sys
import numpy as np
from mpi4py import MPI
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
import fake_cupy
from course_lib import traffic
from course_lib.collectives import Communicator, init
cupy = fake_cupy.install(gpus=8)
calls = fake_cupy.calls
"""


@pytest.fixture
def ranks(eight):
    """Eight ranks that find a CuPy; the first call of all is `init`."""
    assert errors(eight.run(SETUP)) == [None] * 8
    yield eight
    eight.run("for name in ('cupy', 'cupy.cuda', 'cupy.cuda.nccl'): sys.modules.pop(name, None)")


def errors(replies):
    return [reply["error"] and reply["error"]["message"] for _, reply in replies]


def on_all(ranks, source):
    assert errors(ranks.run(source)) == [None] * ranks.n


def test_every_rank_takes_a_gpu_of_its_own_and_the_same_unique_id(ranks):
    on_all(ranks, "comm = init(backend='nccl')\nused, first = list(cupy.cuda.used), calls[0]")
    assert ranks.pull("used") == [[r] for r in range(8)]
    assert ranks.pull("first") == [("init", 8, r) for r in range(8)]


BOTH = """
def both(make):
    # what comes of the same calls on both transports: arrays, and traffic
    found = []
    for comm, asarray in ((Communicator(), np.asarray), (init("nccl"), cupy.asarray)):
        traffic.reset()
        arrays = [np.asarray(a) for a in make(comm, asarray)]
        found.append(([a.tolist() for a in arrays], [(e.operation, e.ranks, e.calls, e.payload, e.wire) for e in traffic.entries()]))
    return found
"""
EXCHANGES = {
    "all-reduce": """
        total, largest = xp(np.empty(5)), xp(np.full(3, rank, np.int32))
        comm.Allreduce(xp(np.arange(5.0) * rank), total)
        comm.Allreduce(MPI.IN_PLACE, largest, MPI.MAX)
        return total, largest""",
    "all-gather": """
        table, own = xp(np.empty((8, 2), np.float32)), xp(np.zeros(16, np.int64))
        own[2 * rank : 2 * rank + 2] = rank
        comm.Allgather(xp(np.array([rank, -rank], np.float32)), table)
        comm.Allgather(MPI.IN_PLACE, own)
        return table, own""",
    "reduce-scatter": """
        part, uneven = xp(np.empty(2)), xp(np.empty(rank))
        comm.Reduce_scatter(xp(np.arange(16.0) + rank), part)
        comm.Reduce_scatter(xp(np.arange(28.0) + rank), uneven, list(range(8)))
        return part, uneven""",
    "broadcast": """
        array = xp(np.full((2, 3), rank, np.float32))
        comm.Bcast(array, root=5)
        return (array,)""",
    "scatter and gather": """
        whole = xp(np.arange(24.0)) if rank == 3 else None
        part, back = xp(np.empty(3)), xp(np.empty((8, 3))) if rank == 6 else None
        comm.Scatter(whole, part, root=3)
        part += rank
        comm.Gather(part, back, root=6)
        return (part,) if back is None else (part, back)""",
    "non-blocking": """
        first, second = xp(np.ones(4) * rank), xp(np.empty(2))
        requests = comm.Iallreduce(MPI.IN_PLACE, first), comm.Iallreduce(xp(np.ones(2)), second)
        [request.Wait() for request in requests]
        return first, second""",
    "non-blocking, and a rank that gets nothing": """
        table, part = xp(np.empty((8, 2))), xp(np.empty(3 * (rank < 7)))
        requests = comm.Iallgather(xp(np.full(2, rank * 0.5)), table), comm.Ireduce_scatter(xp(np.arange(21.0)), part, [3] * 7 + [0])
        while not requests[1].Test():
            pass
        requests[0].Wait()
        return table, part""",
    "all-to-all": """
        turned, ragged = xp(np.empty((8, 2), np.int32)), xp(np.full(40, -1.0))
        comm.Alltoall(xp(np.arange(16, dtype=np.int32) + 100 * rank), turned)
        into, places = [r % 3 for r in range(8)], [5 * r for r in range(8)]
        comm.Alltoallv([xp(np.arange(24.0) + 100 * rank), [rank % 3] * 8], [ragged, (into, places)])
        return turned, ragged""",
    "messages": """
        right, left, got, late = (rank + 1) % 8, (rank - 1) % 8, xp(np.empty(3)), xp(np.empty(1))
        comm.Sendrecv(xp(np.arange(3.0) + rank), right, 0, got, left, 0)
        request = comm.Irecv(late, left, 5)
        if rank % 2:
            comm.Send(xp(np.full(2, rank, np.int64)), right)
        else:
            whole = xp(np.empty(2, np.int64))
            comm.Recv(whole)
            got += whole[0]
        comm.Isend(xp(np.full(1, rank + 0.5)), right, 5).Wait()
        request.Wait()
        return got, late""",
    "barrier": """
        comm.Barrier()
        return ()""",
}

CALLED = {  # by NCCL, which alone can read a GPU's memory
    "all-reduce": {"allReduce"},
    "all-gather": {"allGather"},
    "reduce-scatter": {"reduceScatter", "reduce"},
    "broadcast": {"bcast"},
    "scatter and gather": {"send", "recv"},
    "non-blocking": {"allReduce"},
    "non-blocking, and a rank that gets nothing": {"allGather", "reduce"},
    "all-to-all": {"send", "recv"},
    "messages": {"set"},
    "barrier": set(),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_both_transports_give_the_same_arrays_and_count_the_same(ranks, name):
    on_all(ranks, BOTH + f"\ndef make(comm, xp):\n        rank = comm.Get_rank(){EXCHANGES[name]}\nmpi, nccl = both(make)")
    assert ranks.pull("mpi") == ranks.pull("nccl")
    assert all(counted for _, counted in ranks.pull("mpi"))
    on_all(ranks, "asked = [name for name, *_ in calls]")
    assert all(CALLED[name] <= set(asked) for asked in ranks.pull("asked"))


def test_nccl_is_called_with_counts_types_and_the_stream_beside(ranks):
    on_all(
        ranks,
        "comm = init('nccl')\ncalls.clear()\nx = cupy.asarray(np.ones(6, np.float32))\n"
        "comm.Allreduce(MPI.IN_PLACE, x)\ncomm.Bcast(x, root=2)\n"
        "part = cupy.asarray(np.empty(1, np.float32))\ncomm.Reduce_scatter(cupy.asarray(np.ones(8, np.float32)), part)\n"
        "noted, beside = list(calls), comm.transport._stream\nstream, waited = beside.ptr, beside.waited",
    )
    stream = ranks.pull("stream")[0]
    assert ranks.pull("noted")[0] == [
        ("allReduce", 6, "float32", 0, stream),
        ("bcast", 6, "float32", 2, stream),
        ("reduceScatter", 1, "float32", 0, stream),
    ]
    assert ranks.pull("waited")[0] == 3  # each after what the computing stream was given


def test_split_makes_new_nccl_groups(ranks):
    on_all(
        ranks,
        "comm = init('nccl')\nrank = comm.Get_rank()\n"
        "half = comm.Split(color=0 if rank < 4 else MPI.UNDEFINED)\n"
        "total = cupy.asarray(np.array([float(rank)]))\n"
        "if rank < 4:\n"
        "    pair = half.Split(color=rank % 2)\n    pair.Allreduce(MPI.IN_PLACE, total)\nfound = np.asarray(total)",
    )
    assert [found[0] for found in ranks.pull("found")] == [2, 4, 2, 4, 4, 5, 6, 7]


WRONG = [
    ("comm.Allreduce(np.ones(2), np.ones(2))", "sendbuf must be a CuPy array; got a NumPy array. cupy.asarray(array) moves it to the GPU."),
    ("comm.Allreduce(cupy.asarray(np.ones(2)), cupy.asarray(np.ones(3)))", "recvbuf has 3 elements"),
    ("comm.Allreduce(cupy.asarray(np.ones(2, complex)), cupy.asarray(np.ones(2, complex)))", "which NCCL cannot send"),
    ("comm.Allreduce(cupy.asarray(np.ones((4, 4)))[:, 1], cupy.asarray(np.ones(4)))", "not contiguous"),
    ("x = cupy.asarray(np.ones(2))\ncomm.Allreduce(x, x)", "are the same array"),
    ("comm.Allreduce(cupy.asarray(np.ones(2)), cupy.asarray(np.ones(2)), MPI.LAND)", "NCCL supports the operations MPI.SUM"),
    ("comm.Allreduce(MPI.IN_PLACE, cupy.asarray(np.ones(2 + (comm.Get_rank() == 3))))", "rank 3"),
    ("if comm.Get_rank(): comm.Allreduce(MPI.IN_PLACE, cupy.asarray(np.ones(2)))", "rank 0"),
]


@pytest.mark.parametrize("call, said", WRONG, ids=[said for _, said in WRONG])
def test_a_wrong_call_gets_a_sentence_and_the_next_one_works(ranks, call, said):
    on_all(ranks, "comm = init('nccl')")
    raised = [message for message in errors(ranks.run(call)) if message]
    assert raised and all(said in message for message in raised)
    on_all(ranks, "y = cupy.asarray(np.ones(1))\ncomm.Allreduce(MPI.IN_PLACE, y)\nassert y[0] == 8")


def test_fewer_gpus_than_ranks_no_nccl_and_no_driver(ranks):
    assert (
        errors(ranks.run("fake_cupy.install(gpus=2)\ninit('nccl')"))
        == [
            "init(backend='nccl') needs one GPU per rank: ranks 0–7 run on a machine where CuPy sees 2. "
            "Start as many ranks as there are GPUs. Without GPUs, init() returns a communicator over MPI."
        ]
        * 8
    )
    assert "CuPy finds no NCCL on ranks 0–7" in errors(ranks.run("fake_cupy.install(nccl_there=False)\ninit('nccl')"))[3]
    broken = (
        "m = fake_cupy.install()\ndef fail(): raise RuntimeError('cudaErrorNoDevice')\nm.cuda.runtime.getDeviceCount = fail\ninit('nccl')"
    )
    assert "CuPy sees 0" in errors(ranks.run(broken))[0]


def test_cupy_missing_on_one_rank_is_said_on_all(ranks):
    said = errors(ranks.run("if MPI.COMM_WORLD.rank == 5: sys.modules['cupy'] = None\ninit('nccl')"))
    expected = (
        "init(backend='nccl'): CuPy is not installed on rank 5. Try: pip install -e '.[gpu]'. "
        "Without GPUs, init() returns a communicator over MPI."
    )
    assert said == [expected] * 8


if importlib.util.find_spec("cupy") is None:

    def test_without_cupy_there_is_a_sentence(eight):
        said = errors(eight.run("from course_lib.collectives import init\ninit(backend='nccl')"))
        assert all("CuPy is not installed on ranks 0–7" in message for message in said)


def test_the_other_backends(eight):
    on_all(eight, "from course_lib.collectives import init\nassert type(init()).__name__ == 'Communicator'")
    assert "init: backend must be 'mpi' or 'nccl'; got 'gloo'." in errors(eight.run("init('gloo')"))[0]
