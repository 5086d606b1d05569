"""Ranks that fall silent for a while, and messages that nobody waits for: the same on one machine, on two, and on isolated ranks."""

import threading
import time

import pytest
from machine import patient
from transports import is_graded, run

SUM = "out = np.empty(1)\ncomm.Allreduce(np.ones(1), out)\nassert out[0] == 8"
MAIL = "from course_lib.collectives import Messenger\nmail = Messenger(comm)\n"

LONG = 2.0  # seconds of a silence that must be told from a machine that is busy


@pytest.fixture
def ranks(hosted):
    return hosted


def test_a_silent_rank_is_late_and_no_deadlock(ranks, request):
    ranks.silence(5, seconds=2.5)
    began = time.monotonic()
    assert run(ranks, SUM, after=False) == [None] * 8
    assert is_graded(request) or time.monotonic() - began > 2.4, "nobody was silent"
    began = time.monotonic()
    assert run(ranks, SUM) == [None] * 8
    assert time.monotonic() - began < patient(2), "a silence is over with its cell"


@pytest.mark.parametrize("call", ["comm.Send(np.ones(3), (rank + 1) % 8)", "comm.Isend(np.ones(3), (rank + 1) % 8).Wait()"])
def test_messages_are_late_too(ranks, request, call):
    ranks.silence(2, seconds=LONG)
    took = f"began = time.monotonic()\n{call}\ngot = np.empty(3)\ncomm.Recv(got, (rank - 1) % 8)\nseconds = time.monotonic() - began"
    assert run(ranks, took) == [None] * 8
    late = [r for r, seconds in enumerate(ranks.pull("seconds")) if seconds > 0.8 * LONG]
    assert is_graded(request) or late == [2, 3]


def test_it_begins_after_so_many_sends(ranks, request):
    ranks.silence(1, seconds=LONG, after=2)
    cell = "times = []\nfor i in range(4):\n    began = time.monotonic()\n    comm.Barrier()\n    times.append(time.monotonic() - began)"
    assert run(ranks, cell) == [None] * 8
    late = [i for i, seconds in enumerate(ranks.pull("times")[0]) if seconds > 0.8 * LONG]
    assert is_graded(request) or late == [2]


def test_a_deadlock_beside_a_silent_rank_is_still_found(ranks):
    ranks.silence(7, seconds=1.5)
    errors = run(ranks, "if rank < 2:\n    comm.Split(rank)\nelif rank == 7:\n    comm.Barrier()\n")
    assert "rank 7 waits in Barrier #1" in errors[0] and "have finished" in errors[0], errors
    assert "silent" not in errors[0], "it is back by then"


def test_an_interrupt_ends_a_silence(ranks, request):
    ranks.silence(3, seconds=600)
    if not is_graded(request):  # there, nobody sleeps
        threading.Timer(1.0, ranks.interrupt).start()
    began = time.monotonic()
    errors = run(ranks, SUM)
    assert time.monotonic() - began < patient(15)
    if is_graded(request):
        assert not any(errors), errors
        return
    assert errors[3].startswith("KeyboardInterrupt")


def test_listening_ends_in_time_and_late_messages_arrive(ranks):
    ranks.silence(4, seconds=2 * LONG, after=1 + 3)
    cell = MAIL + f"mail.send_all('a', 1, np.full(3, rank))\nfirst = sorted(m.source for m in mail.listen('a', {0.8 * LONG}))\n"
    cell += f"late = sorted((m.source, int(m.value[0])) for m in mail.listen('a', {2.5 * LONG}))"
    assert run(ranks, cell) == [None] * 8
    first, late = ranks.pull("first"), ranks.pull("late")
    for r in range(8):
        heard = r < 3 or r == 4  # it sends to ranks 0, 1 and 2 before
        assert first[r] == [k for k in range(8) if k != r and (k != 4 or heard)]
        assert late[r] == ([] if heard else [(4, 4)])


def test_large_messages_and_a_receiver_that_is_silent(ranks):
    ranks.silence(6, seconds=0.5, after=1)
    cell = (
        MAIL + "mail.send_all('a', rank, np.full(200_000, rank))\ngot = {}\nfor m in mail.listen('a', 20):\n    got[m.source] = m.value\n"
    )
    cell += "    if len(got) == 7: break\nassert all((value == r).all() for r, value in got.items()), got"
    assert run(ranks, cell) == [None] * 8


def test_many_messages_to_a_silent_rank_do_not_keep_the_others_waiting(ranks, request):
    ranks.silence(6, seconds=3 * LONG, after=2)  # the Messenger itself sends once, and the Barrier
    cell = MAIL + "comm.Barrier()\nbegan, heard = time.monotonic(), 0\nif rank == 6: mail.send(0, 'b', 0)\n"
    cell += "for key in range(1000 if rank < 2 else 0):\n    mail.send(6, 'a', key, np.ones(400))\n    mail.send(1 - rank, 'a', key)\n"
    cell += "    for m in mail.listen('a', 60):\n        heard += m.key == key\n        break\n"
    cell += "seconds = time.monotonic() - began\nif rank == 6:\n    for m in mail.listen('a', 60):\n        heard += 1\n"
    cell += "        if heard == 2000: break\n    assert heard == 2000"
    assert run(ranks, cell) == [None] * 8
    assert ranks.pull("heard")[:2] == [1000, 1000]
    assert is_graded(request) or max(ranks.pull("seconds")[:2]) < 2.5 * LONG


def test_topics_and_messages_that_are_put_back(ranks):
    cell = MAIL + "heard = []\nmail.on('c', lambda m: heard.append(m.source))\n"
    cell += "for key in range(3): mail.send_all('ab'[key % 2], key)\nmail.send_all('c', 0)\ncomm.Barrier()\n"
    cell += "b = [m.key for m in mail.listen('b', 1.5)]\nassert b == [1] * 7, b\n"
    cell += "kept = []\nfor m in mail.listen('a', 0.2):\n    if m.key == 2: mail.keep(m)\n    else: kept.append(m.key)\n"
    cell += "assert kept == [0] * 7, kept\nagain = [m.key for m in mail.listen('a', 0)]\nassert again == [2] * 7, again\n"
    cell += "assert sorted(heard) == [r for r in range(8) if r != rank], heard"
    assert run(ranks, cell) == [None] * 8


def test_messages_of_an_earlier_messenger_do_not_arrive(ranks):
    cell = MAIL + "mail.send_all('a', 'old')\nmail = Messenger(comm)\nmail.send_all('a', 'new')\n"
    cell += "keys = {m.key for m in mail.listen('a', 1.5)}\nassert keys == {'new'}, keys"
    assert run(ranks, cell) == [None] * 8


def test_a_group_has_messengers_of_its_own(ranks):
    cell = "from course_lib.collectives import Messenger\npair = comm.Split(rank // 2, -rank)\nmail = Messenger(pair)\n"
    cell += "mail.send_all('a', rank)\nfound = [(m.source, m.key) for m in mail.listen('a', 1.5)]\n"
    cell += "assert found == [(1 - mail.rank, rank ^ 1)] and mail.size == 2, found"
    assert run(ranks, cell) == [None] * 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("mail.send(8, 'a', 1)", "0 to 7; got 8"),
        ("mail.send(1, 5, 1)", "must be text"),
        ("list(mail.listen('a', -1))", "0 or more; got -1"),
    ],
)
def test_a_wrong_argument_is_said(ranks, call, words):
    errors = run(ranks, MAIL + f"if rank == 3: {call}")
    assert words in errors[3] and "rank 3" in errors[3] and errors[0] is None


@pytest.mark.parametrize(("arguments", "words"), [((8, 1), "there is no rank 8"), ((1, -1), "0 or more"), ((1, 1, -2), "0 or more")])
def test_a_silence_that_cannot_be(hosted_processes, arguments, words):
    with pytest.raises(ValueError, match=words):
        hosted_processes.silence(*arguments)
