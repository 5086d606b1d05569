"""Messages from rank to rank: they arrive, a legal program never raises, and what cannot end is named rank by rank."""

import numpy as np
import pytest
from transports import is_graded, is_nccl, run

LEGAL = {
    "a ring at once": "got = np.empty(5)\ncomm.Sendrecv(np.full(5, float(rank)), (rank + 1) % 8, 3, got, (rank - 1) % 8, 3)",
    "a large ring at once": (
        "x, got = np.full(300_000, float(rank)), np.empty(300_000)\n"
        "comm.Sendrecv(x, (rank + 1) % 8, 3, got, (rank - 1) % 8, 3)\nassert (got == (rank - 1) % 8).all()"
    ),
    "small sends before receives": "got = np.empty(5)\ncomm.Send(np.ones(5), rank ^ 1)\ncomm.Recv(got, rank ^ 1)\nassert got.sum() == 5",
    "large ones in an order that works": (
        "x = np.full(300_000, float(rank))\ngot = np.empty_like(x)\nother = rank ^ 1\n"
        "if rank % 2: comm.Recv(got, other); comm.Send(x, other)\nelse: comm.Send(x, other); comm.Recv(got, other)\nassert got[-1] == other"
    ),
    "tags in another order": (
        "if rank == 0:\n    for t in (1, 2, 3): comm.Send(np.full(2, t), 1, tag=t)\n"
        "if rank == 1:\n    got = np.empty(2, int)\n    for t in (3, 1, 2): comm.Recv(got, 0, tag=t); assert got[0] == t"
    ),
    "any source and any tag": (
        "if rank:\n    comm.Send(np.full(1, rank), 0, tag=rank)\nelse:\n    got, seen, status = np.empty(1, int), set(), MPI.Status()\n"
        "    for _ in range(7):\n        comm.Recv(got, status=status)\n        assert got[0] == status.source == status.tag\n"
        "        seen.add(status.source)\n    assert seen == set(range(1, 8))"
    ),
    "messages overtake none of the same tag": (
        "if rank == 0:\n    for i in range(200): comm.Isend(np.full(3, i), 1)\n"
        "if rank == 1:\n    got = np.empty(3, int)\n    for i in range(200): comm.Recv(got, 0); assert got[0] == i"
    ),
    "receives that were posted first get the first messages": (
        "if rank == 1:\n    gots = [np.empty(1) for _ in range(5)]\n    waits = [comm.Irecv(got, 0) for got in gots]\ncomm.Barrier()\n"
        "if rank == 0:\n    for i in range(5): comm.Send(np.full(1, float(i)), 1)\n"
        "if rank == 1:\n    for wait in reversed(waits): wait.Wait()\n    assert [got[0] for got in gots] == list(range(5))"
    ),
    "a large message that is started, and a barrier": (
        "x, got = np.ones(300_000), np.empty(300_000)\nif rank == 0: wait = comm.Isend(x, 1)\ncomm.Barrier()\n"
        "if rank == 1: comm.Recv(got, 0); assert got.all()\nif rank == 0: wait.Wait()"
    ),
    "a receive that is started, and a barrier": (
        "x, got = np.ones(300_000), np.empty(300_000)\nif rank == 1: wait = comm.Irecv(got, 0)\nif rank == 0: comm.Send(x, 1)\n"
        "comm.Barrier()\nif rank == 1: wait.Wait(); assert got.all()"
    ),
    "a large message that nobody waits for": (
        "x, got = np.ones(300_000), np.empty(300_000)\nif rank == 0: comm.Isend(x, 1)\nif rank == 1: comm.Recv(got, 0); assert got.all()"
    ),
    "to oneself": "got = np.empty(3)\nwait = comm.Irecv(got, rank)\ncomm.Send(np.ones(3), rank)\nwait.Wait()\nassert got.all()",
    "to nobody": "got = np.ones(3)\ncomm.Sendrecv(np.zeros(3), MPI.PROC_NULL, 0, got, MPI.PROC_NULL, 0)\nassert got.all()",
    "in two groups with the same tag": (
        "half, pair = comm.Split(rank // 4), comm.Split(rank // 2)\none, two = np.empty(1), np.empty(1)\n"
        "if half.rank == 0: half.Send(np.full(1, 1.0), 1); pair.Send(np.full(1, 2.0), 1)\n"
        "if half.rank == 1: pair.Recv(two, 0); half.Recv(one, 0); assert (one[0], two[0]) == (1, 2)"
    ),
    "two groups of a grid in different orders": (
        "row, col = comm.Split(rank // 4), comm.Split(rank % 4)\nx, one, two = np.ones(9), np.empty(9), np.empty(9)\n"
        "def by_row(): return row.Iallreduce(x, one)\ndef by_col(): return col.Iallreduce(x, two)\n"
        "waits = [f() for f in ((by_row, by_col) if rank % 3 else (by_col, by_row))]\nfor wait in waits: wait.Wait()\n"
        "assert one[0] == 4 and two[0] == 2"
    ),
    "a start, and a call that blocks on another group": (
        "row, col = comm.Split(rank // 4), comm.Split(rank % 4)\nx, one, two = np.ones(9), np.empty(9), np.empty(9)\n"
        "if rank % 3: wait = row.Iallreduce(x, one); col.Allreduce(x, two)\nelse: col.Allreduce(x, two); wait = row.Iallreduce(x, one)\n"
        "wait.Wait()\nassert one[0] == 4 and two[0] == 2"
    ),
    "starts of all kinds, and a call that blocks on the same group": (
        "whole, part, total, out = np.empty((8, 2)), np.empty(2), np.empty(3), np.empty(1)\n"
        "waits = [comm.Iallgather(np.full(2, float(rank)), whole), comm.Ireduce_scatter(np.ones(16), part)]\n"
        "waits.append(comm.Iallreduce(np.ones(3), total))\n"
        "comm.Allreduce(np.ones(1), out)\nfor wait in waits: wait.Wait()\n"
        "assert whole[:, 1].tolist() == list(range(8)) and part.tolist() == [8, 8] and total[0] == out[0] == 8"
    ),
    "many starts at a time": (
        "outs = [np.empty(2) for _ in range(300)]\nwaits = [comm.Iallreduce(np.full(2, float(i)), out) for i, out in enumerate(outs)]\n"
        "for wait in waits: wait.Wait()\nassert [out[0] for out in outs] == [8.0 * i for i in range(300)]"
    ),
    "many small sends, and a barrier that comes first on the other side": (
        "got = np.empty(2)\nif rank == 0: [comm.Send(np.full(2, float(i)), 3) for i in range(40)]\ncomm.Barrier()\n"
        "for i in range(40 * (rank == 3)): comm.Recv(got, 0); assert got[0] == i"
    ),
    "more small sends than MPI has room for, and a start that comes first on the other side": (
        "got, whole = np.empty(2), np.empty((8, 1))\nif rank == 0: [comm.Send(np.full(2, float(i)), 3) for i in range(1000)]\n"
        "comm.Iallgather(np.ones(1), whole).Wait()\nfor i in range(1000 * (rank == 3)): comm.Recv(got, 0); assert got[0] == i"
    ),
    "more small sends than MPI has room for, and a barrier": (
        "got = np.empty(2)\nif rank == 0: [comm.Send(np.full(2, float(i)), 3) for i in range(1000)]\ncomm.Barrier()\n"
        "for i in range(1000 * (rank == 3)): comm.Recv(got, 0); assert got[0] == i"
    ),
    "starts with nothing in them": (
        "import time\ncounts, nothing = [1] * 7 + [0], np.empty(0)\nfor k in range(10):\n"
        "    time.sleep(0.01 * (rank % 2))\n    comm.Iallreduce(np.empty(0), np.empty(0)).Wait()\n"
        "    comm.Ireduce_scatter(np.ones(7), np.empty(counts[rank]), counts).Wait()"
    ),
    "a message between starts": (
        "out, got = np.empty(2), np.empty(1)\nwait = comm.Iallreduce(np.ones(2), out)\n"
        "comm.Sendrecv(np.ones(1), rank ^ 1, 0, got, rank ^ 1, 0)\nwait.Wait()\nassert out[0] == 8"
    ),
    "many messages to the rank that comes last": (  # until it takes them in, their sender can send nothing to others
        "got = np.empty(2)\nwaits = [comm.Isend(np.full(2, float(i)), 3) for i in range(1000 if rank == 0 else 0)]\n"
        "if rank == 3: time.sleep(0.3)\ncomm.Barrier()\nfor i in range(1000 if rank == 3 else 0): comm.Recv(got, 0); assert got[0] == i\n"
        "for wait in waits: wait.Wait()"
    ),
    "one rank starts late": (
        "out, word = np.empty(2), np.empty(1)\nif rank == 5: [comm.Recv(word, r) for r in range(8) if r != 5]\n"  # they have gone on
        "wait = comm.Iallreduce(np.ones(2), out)\nif rank != 5: comm.Send(np.ones(1), 5)\nwait.Wait()\nassert out[0] == 8"
    ),
}


@pytest.mark.parametrize("program", LEGAL)
def test_a_legal_program_never_raises(ranks, program):
    assert run(ranks, LEGAL[program]) == [None] * 8


def test_a_message_may_wait_for_the_next_cell(processes):
    assert run(processes, "if rank == 0: comm.Send(np.full(2, 7.0), 1, tag=9)", after=False) == [None] * 8
    assert run(processes, "got = np.empty(2)\nif rank == 1: comm.Recv(got, 0, tag=9); assert got[0] == 7") == [None] * 8


def test_receives_that_two_ranks_leave_open_end_in_the_next_cell(processes):
    """Each takes in a message for another receive after its own cell, and neither may take the other for one that still runs."""
    source = "if rank < 2: got = np.empty(2); wait = comm.Irecv(got, 1 - rank, 5)\n"
    source += "if rank == 2: time.sleep(0.3); comm.Send(np.ones(2), 0, 7); comm.Send(np.ones(2), 1, 7)"
    assert run(processes, source, after=False) == [None] * 8
    source = (
        "if rank < 2: comm.Send(np.full(2, 3.0), 1 - rank, 5); wait.Wait(); assert got[0] == 3; comm.Recv(got, 2, 7); assert got[0] == 1"
    )
    assert run(processes, source) == [None] * 8


def test_what_is_left_of_a_cell_that_failed_meets_none_of_the_next(ranks):
    for _ in range(2):  # the second time, the rank that fails has sent and received nothing since the first
        errors = run(ranks, "if rank == 0: comm.Send(np.ones(2), 1); comm.Send(np.zeros(2), 1)\nif rank == 1: 1 / 0", after=False)
        assert errors[1].startswith("ZeroDivisionError")
    source = "got = np.empty(2)\nif rank == 0: comm.Send(np.full(2, 5.0), 1)\nif rank == 1: comm.Recv(got, 0); assert got[0] == 5, got"
    assert run(ranks, source) == [None] * 8


WRONG = {  # source, the ranks that raise, and what all of them say
    "two wait for each other's message": (
        "got = np.empty(2)\nif rank == 1: comm.Recv(got, 2)\nif rank == 2: comm.Recv(got, 1)",
        [1, 2],
        [
            "DeadlockError",
            "rank 1 waits in Recv from rank 2 (cell [1], line 2); rank 2 waits in Recv from rank 1 (cell [1], line 3)",
            "Sendrecv",
        ],
    ),
    "a ring in which all receive first": (
        "got = np.empty(2)\ncomm.Recv(got, (rank - 1) % 8)\ncomm.Send(got, (rank + 1) % 8)",
        list(range(8)),
        ["DeadlockError", "rank 0 waits in Recv from rank 7", "rank 7 waits in Recv from rank 6", "send before receiving"],
    ),
    "large sends before receives": (
        "x = np.ones(300_000)\nif rank < 2: comm.Send(x, 1 - rank); comm.Recv(x, 1 - rank)",
        [0, 1],
        ["DeadlockError", "rank 0 waits in Send to rank 1", "rank 1 waits in Send to rank 0", "One of them must receive before it sends"],
    ),
    "large sends that are started and waited for before receives": (
        "x = np.ones(300_000)\nif rank < 2: comm.Isend(x, 1 - rank).Wait(); comm.Recv(x, 1 - rank)",
        [0, 1],
        ["DeadlockError", "rank 0 waits in Wait of Isend to rank 1", "One of them must receive before it sends"],
    ),
    "an exchange with a source that sends elsewhere": (
        "if rank < 3: comm.Sendrecv(np.ones(2), (rank + 1) % 3, 0, np.empty(2), (rank + 1) % 3)",
        [0, 1, 2],
        ["DeadlockError", "rank 0 waits in Sendrecv from rank 1", "check dest, source and the tags"],
    ),
    "a large send before a barrier, and its receive behind it": (
        "x = np.ones(300_000)\nif rank == 0: comm.Send(x, 3)\ncomm.Barrier()\nif rank == 3: comm.Recv(x, 0)",
        list(range(8)),
        ["DeadlockError", "rank 0 waits in Send to rank 3", "ranks 1–7 wait in Barrier", "before the collective on one rank"],
    ),
    "a receive that nobody sends": (
        "if rank == 3: comm.Recv(np.empty(2), 6)",
        [3],
        ["DeadlockError", "rank 3 waits in Recv from rank 6", "rank 6 has finished the cell without it", "What one rank receives"],
    ),
    "a receive from a rank that has ended its cell, and takes in a message for a receive that it has left open": (
        "if rank == 0: comm.Irecv(np.empty(2), 1, 5)\n"
        "if rank == 1: time.sleep(0.3); comm.Send(np.ones(2), 0, 7); comm.Recv(np.empty(2), 0)",
        [1],
        ["DeadlockError", "rank 1 waits in Recv from rank 0", "rank 0 has finished the cell without it"],
    ),
    "more small sends than MPI has room for, from a rank that raises then": (
        "if rank == 0: waits = [comm.Isend(np.full(2, float(i)), 1) for i in range(3000)]; 1 / 0\n"
        "got = np.empty(2)\nif rank == 1: time.sleep(0.3)\nfor i in range(3001 * (rank == 1)): comm.Recv(got, 0); assert got[0] == i",
        [0, 1],
        ["DeadlockError", "rank 1 waits in Recv from rank 0", "rank 0 has raised ZeroDivisionError", "Fix that error first"],
    ),
    "another tag": (
        "if rank == 0: comm.Send(np.ones(3), 1, tag=7)\nif rank == 1: comm.Recv(np.empty(3), 0, tag=8)",
        [1],
        [
            "DeadlockError",
            "rank 1 waits in Recv from rank 0 with tag 8",
            "rank 0 has sent 3 float64 with tag 7, which does not match",
        ],
    ),
    "a receive that is started and never met": (
        "if rank == 1: comm.Irecv(np.empty(2), 0).Wait()",
        [1],
        ["DeadlockError", "rank 1 waits in Wait of Irecv from rank 0", "rank 0 has finished the cell without it"],
    ),
    "anybody's message, and nobody sends": (
        "if rank == 1: comm.Recv(np.empty(2))",
        [1],
        ["DeadlockError", "rank 1 waits in Recv from any rank", "have finished the cell without it"],
    ),
    "a message beside a barrier": (
        "comm.Recv(np.empty(2), 1) if rank == 0 else comm.Barrier()",
        list(range(8)),
        ["DeadlockError", "rank 0 waits in Recv from rank 1", "ranks 1–7 wait in Barrier #1"],
    ),
    "who should send has raised": (
        "if rank == 0: 1 / 0\nif rank == 1: comm.Recv(np.empty(2), 0)",
        [0, 1],
        ["DeadlockError", "rank 1 waits in Recv from rank 0", "rank 0 has raised ZeroDivisionError", "Fix that error first"],
    ),
    "to oneself, with nobody to receive it": (
        "if rank == 4: comm.Send(np.ones(300_000), 4)",
        [4],
        ["DeadlockError", "rank 4 waits in Send to rank 4"],
    ),
    "another size": (
        "if rank == 0: comm.Send(np.ones(3), 1)\nif rank == 1: comm.Recv(np.empty(4), 0)",
        [1],
        ["MismatchError", "rank 1", "expected 4 float64 from rank 0", "rank 0 sent 3 float64", "The size must be the same"],
    ),
    "another dtype": (
        "if rank == 0: comm.Send(np.ones(3), 1)\nif rank == 1: comm.Irecv(np.empty(3, np.float32), 0).Wait()",
        [1],
        ["MismatchError", "expected 3 float32", "sent 3 float64", "dtype="],
    ),
    "of the same number of bytes": (
        "if rank == 0: comm.Send(np.ones(2), 1)\nif rank == 1: comm.Recv(np.empty(4, np.float32), 0)",
        [1],
        ["MismatchError", "expected 4 float32", "sent 2 float64"],
    ),
    "starts that differ": (
        "(comm.Iallreduce(np.ones(3), np.empty(3)) if rank else comm.Iallgather(np.ones(3), np.empty(24))).Wait()",
        list(range(8)),
        ["MismatchError", "rank 0: Iallgather of 3 float64", "ranks 1–7: Iallreduce of 3 float64"],
    ),
    "a start beside a call that blocks": (
        "x, out = np.ones(3), np.empty(3)\nif rank == 2: comm.Iallreduce(x, out).Wait()\nelse: comm.Allreduce(x, out)",
        list(range(8)),
        ["MismatchError", "rank 2: Iallreduce of 3 float64"],
    ),
    "dtypes of an all-to-all": (
        "x = np.ones(8, np.float32 if rank < 4 else np.float64)\ncomm.Alltoallv([x, [1] * 8], [np.empty_like(x), [1] * 8])",
        list(range(8)),
        ["MismatchError", "ranks 0–3: Alltoallv of float32; ranks 4–7: Alltoallv of float64", "dtype="],
    ),
    "counts of an all-to-all": (
        "n = [1] * 8\ncomm.Alltoallv([np.ones(8), n], [np.empty(8 + (rank == 3)), [2 if rank == 3 and i == 0 else 1 for i in range(8)]])",
        list(range(8)),
        ["MismatchError", "Alltoallv"],
    ),
}


@pytest.mark.parametrize("program", WRONG)
def test_what_cannot_end_is_named_and_the_next_cell_works(ranks, program):
    source, raising, words = WRONG[program]
    errors = run(ranks, source)
    assert [r for r in range(8) if errors[r]] == raising
    texts = [text for text in errors if text and not text.startswith("ZeroDivisionError")]
    best = max(texts, key=lambda text: sum(word in text for word in words))
    assert [word for word in words if word not in best] == [], best


AFTER = {  # rank 4 is late, so that it finds what the others have sent; then it leaves MPI as soon as its own part is done
    "a large message": "x = np.ones(20_000)\nif rank == 0: comm.Send(x, 4)\nif rank == 4: time.sleep(0.1); comm.Recv(x, 0)",
    "a small collective": "if rank == 4: time.sleep(0.01)\nout = np.empty(1)\ncomm.Allreduce(np.ones(1), out)\nassert out[0] == 8",
    "a large collective": "if rank == 4: time.sleep(0.1)\nx = np.ones(20_000)\ncomm.Allreduce(np.ones(20_000), x)\nassert x[-1] == 8",
}


@pytest.mark.parametrize("program", AFTER)
def test_a_large_message_to_oneself_that_is_lost_holds_nothing_back(ranks, program):
    assert run(ranks, WRONG["to oneself, with nobody to receive it"][0], after=False)[4].startswith("DeadlockError")
    assert run(ranks, AFTER[program], after=False) == [None] * 8


def test_a_rank_that_raises_after_a_start_leaves_nobody_waiting(ranks):
    source = "if rank: time.sleep(0.2)\nout = np.empty(3)\nwait = comm.Iallreduce(np.ones(3), out)\nif rank == 0: 1 / 0\nwait.Wait()"
    first, *others = run(ranks, source)
    assert first.startswith("ZeroDivisionError")
    assert all(error is None or error.startswith("DeadlockError") for error in others)  # a transport may need nothing more of rank 0


ARGUMENTS = {
    "comm.Send(np.ones(2), 8)": "dest must be a rank of the group, 0 to 7; got 8",
    "comm.Send(np.ones(2), None)": "dest must be a rank",
    "comm.Recv(np.empty(2), 1.5)": "source must be a rank",
    "comm.Send(np.ones(2), 0, tag=-2)": "tag must be a whole number",
    "comm.Send([1.0], 0)": "Send: buf must be a NumPy array; got a list",
    "comm.Recv(None, 0)": "Recv: recvbuf must be a NumPy array; got None",
    "comm.Sendrecv(x := np.ones(2), 0, 0, x, 0)": "the same array",
    "comm.Alltoall(np.ones(9), np.empty(9))": "9 elements (shape (9,)), which 8 ranks cannot share equally",
    "comm.Alltoall(np.ones(8), np.empty(16))": "recvbuf has 16 elements",
    "comm.Alltoallv(np.ones(8), np.ones(8))": "must be [array, counts]",
    "comm.Alltoallv([np.ones(8), [1, 1]], [np.ones(8), [1] * 8])": "needs 8 counts",
    "comm.Alltoallv([np.ones(8), [2] * 8], [np.ones(8), [1] * 8])": "has 8 elements, and its counts",
    "comm.send(1, 0)": "For arrays, use Send",
}


@pytest.mark.parametrize("call", ARGUMENTS)
def test_a_wrong_argument_gets_a_sentence(ranks, call, request):
    errors = run(ranks, call)
    expected = ARGUMENTS[call].replace("NumPy", "CuPy") if is_nccl(request) else ARGUMENTS[call]
    assert all(expected in error for error in errors), errors[0]


def exchanged(seed, n):
    """Each rank sends random messages to random ranks, and receives what is for it, in a random order of sources."""

    from course_lib.collectives import Communicator

    comm = Communicator()
    me, random = comm.Get_rank(), np.random.default_rng(seed)
    sizes = random.integers(0, 40_000, (n, n, 4)) * random.integers(0, 2, (n, n, 4))
    sends = [comm.Isend(np.full(size, 100 * me + i, np.int32), to, i) for to in range(n) for i, size in enumerate(sizes[me, to])]
    wanted = [(source, i) for source in range(n) for i in range(4)]
    np.random.default_rng(seed + me).shuffle(wanted)
    right = True
    for source, i in wanted:
        got = np.empty(sizes[source, me, i], np.int32)
        comm.Recv(got, source, i)
        right &= bool((got == 100 * source + i).all())
    for send in sends:
        send.Wait()
    return right


@pytest.mark.parametrize("seed", range(4))
def test_random_messages_arrive(hosted, seed):
    assert hosted.call(exchanged, dict(seed=seed, n=8)) == [True] * 8


def transposed(seed, n):
    """An all-to-all of equal and of unequal parts, against NumPy."""

    from course_lib.collectives import Communicator

    comm = Communicator()
    me, random = comm.Get_rank(), np.random.default_rng(seed)
    whole, counts = random.standard_normal((n, n, 3)), random.integers(0, 5, (n, n))
    got = np.empty((n, 3))
    comm.Alltoall(whole[me], got)
    into = np.empty(counts[:, me].sum())
    comm.Alltoallv(
        [np.repeat(np.arange(n) + 10.0 * me, counts[me]), counts[me]], [into, (counts[:, me], np.r_[0, counts[:-1, me].cumsum()])]
    )
    wanted = np.concatenate([np.full(counts[r, me], me + 10.0 * r) for r in range(n)])
    return bool((got == whole[:, me]).all()), into.tolist() == wanted.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_all_to_all_is_a_transpose(hosted, seed):
    assert (
        hosted.call(transposed, dict(seed=seed, n=8)) == [(True, True)] * 8
        or hosted.call(transposed, dict(seed=seed, n=8)) == [[True, True]] * 8
    )


def counted():

    from course_lib import traffic
    from course_lib.collectives import Communicator

    comm = Communicator()
    me, n = comm.Get_rank(), comm.Get_size()
    traffic.reset()
    comm.Sendrecv(np.zeros(10), (me + 1) % n, 0, np.empty(10), (me - 1) % n, 0)
    comm.Alltoall(np.zeros(n), np.empty(n))
    return {e.operation: [e.payload, e.wire] for e in traffic.entries()}


def test_what_is_sent_is_counted(hosted):
    assert hosted.call(counted) == [{"Send": [80, 80], "Alltoall": [64, 56]}] * 8


def test_numbers_are_of_any_kind(hosted):
    source = (
        "for dtype in '?bBhHiIlLqQfdFD':\n    got = np.empty(3, dtype)\n"
        "    comm.Sendrecv(np.ones(3, dtype), rank ^ 1, 0, got, rank ^ 1, 0)\n    assert got.all()"
    )
    assert run(hosted, source) == [None] * 8


@pytest.mark.parametrize("end", ["request.Wait()", "while not request.Test(): pass", "request.Waitall([request])"])
def test_an_array_changed_before_its_wait_is_named(hosted, end, request):
    source = "from course_lib.collectives.progress.operations import progress_state\nbefore = progress_state.open_requests\n"
    source += "x, got = np.zeros(5), np.empty(5)\nif rank < 2:\n    request = comm.Isend(x, 1 - rank)\n    x += 1\n"
    errors = run(hosted, source + f"    comm.Recv(got, 1 - rank)\n    {end}")
    if is_graded(request):  # MPI itself does not look
        assert all("was changed before its Wait" in error for error in errors[:2]) and errors[2:] == [None] * 6
        assert run(hosted, "assert progress_state.open_requests == before") == [None] * 8
