"""Check of part 30's collectives: what it says of calls, messages and steps, given what ranks have returned and sent."""

import numpy as np
import pytest

from course_lib.check import CheckFailed
from course_lib.check.collectives import on_ranks
from course_lib.check.collectives.check import CollectivesCheck
from course_lib.check.collectives.choose import ALGORITHMS, ChoiceCheck, equal_bytes
from course_lib.check.collectives.reference import pieces


class Answering:
    """Four ranks that return what is right and have sent what they are told to have sent, by their places in a group of four."""

    isolated = True  # nobody asks the ranks for their messages

    def __init__(self, function, sent, unended=0):
        self.function, self.sent = function, sent
        self.unended, self.messages = (
            [unended] * 4,
            [[("to", *message) if len(message) == 2 else message for message in mine] for mine in sent],
        )
        self.traffic = [[("Send", [0, 1, 2, 3], len(mine), sum(m[-1] for m in mine))] for mine in sent]

    def call(self, what, arguments, show=False):
        given = [each["x"].copy() for each in arguments]
        if self.function == "ring_reduce_scatter":
            results = pieces(np.add.reduce(given), 4)
        elif self.function == "tree_broadcast":
            results = [given[arguments[0]["more"][0]]] * 4
        else:
            results = [np.stack([x[r] for x in given]) for r in range(4)]
        results = [out.copy() for out in results]
        return [(out, x, out.copy(), []) for out, x in zip(results, given, strict=True)]


def said(function, sent, root=0, unended=0):
    """Message of the check about ranks that have sent this, in a group of four; x has 8 numbers, or two in each row."""
    with pytest.raises(CheckFailed) as failed:
        CollectivesCheck(function, Answering(function, sent, unended)).run(4, 2 if function == "pairwise_all_to_all" else 8, root=root)
    return str(failed.value)


def in_ring(step, many=3, nbytes=16):
    return [[((r + step) % 4, nbytes)] * many for r in range(4)]


def test_a_ring_in_either_direction_passes():
    for step in (1, -1):
        CollectivesCheck("ring_reduce_scatter", Answering("ring_reduce_scatter", in_ring(step))).run(4, 8)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (in_ring(1, 4), "sends 4 messages; 3 are enough"),
        (in_ring(1, 3, 64), "a message of 64 bytes; 16 are enough"),
        ([[((r + 1) % 4, size) for size in (8, 8, 32)] for r in range(4)], "a message of 32 bytes; 16 are enough"),
        (in_ring(2), "rank 0 sends to rank 2, and not only to the next one, rank 1"),
        ([[((r + s) % 4, 16) for s in (1, 2, 3)] for r in range(4)], "not only to the next one"),
        ([[("Barrier", -1, 0)], *in_ring(1)[1:]], "on rank 0 calls Barrier"),
    ],
)
def test_other_messages_are_named(sent, message):
    assert message in said("ring_reduce_scatter", sent)


def test_a_request_that_nobody_waits_for_is_named():
    assert "rank 0 has started 2 more exchanges than it has waited for" in said("ring_reduce_scatter", in_ring(1), unended=2)


class Returning(Answering):
    """Four ranks that return what a function of all arguments gives, having sent what they should."""

    def __init__(self, function, results, step=1):
        super().__init__(function, in_ring(step))
        self.results = results

    def call(self, what, arguments, show=False):
        answers = super().call(what, arguments, show)
        outs = self.results([each["x"] for each in arguments])
        return [(out, after, out, []) for out, (_, after, *_) in zip(outs, answers, strict=True)]


@pytest.mark.parametrize(
    ("results", "op", "message"),
    [
        (
            lambda given: [pieces(x, 4)[r] for r, x in enumerate(given)],
            "add",
            "the rank's own piece, without the others'. If",
        ),
        (lambda given: pieces(np.add.reduce(given), 4), "maximum", "It is the sum, but op is np.maximum."),
        (lambda given: pieces(np.add.reduce(given), 4)[[1, 2, 3, 0]], "add", "It is the piece of the rank 1 place on."),
        (lambda given: [pieces(np.add.reduce(given), 4)] * 4, "add", "has shape (4, 2), expected (2,), for"),
    ],
)
def test_a_wrong_result_is_named_by_its_values(results, op, message):
    with pytest.raises(CheckFailed) as failed:
        CollectivesCheck("ring_reduce_scatter", Returning("ring_reduce_scatter", results)).run(4, 8, op=op)
    assert message in str(failed.value) and "usual cause" not in str(failed.value)


def test_pieces_of_a_ring_that_turns_the_other_way_are_named():
    ranks = Returning("ring_reduce_scatter", lambda given: [pieces(x, 4)[r] for r, x in enumerate(given)], step=-1)
    with pytest.raises(CheckFailed, match="A usual cause: messages that go to the previous rank"):
        CollectivesCheck("ring_reduce_scatter", ranks).run(4, 8)


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda *case: None, "must return 'ring' or 'recursive doubling'; got None, for 2 ranks. A usual cause: a missing return."),
        (lambda *case: "Ring", "must return 'ring' or 'recursive doubling'; got 'Ring', for 2 ranks."),
        (lambda nbytes, n, *_: ALGORITHMS[nbytes <= equal_bytes(n, *_)], "A usual cause: the two algorithms swapped."),
        (lambda nbytes, *_: ALGORITHMS[nbytes > 0], "A usual cause: one half of the ring forgotten"),
    ],
)
def test_a_wrong_choice_is_named_by_its_kind(choose, message):
    class Choosing:
        def call(self, what, arguments, show=False):
            return [[choose(*case) for case in arguments["cases"]]] * 4

    with pytest.raises(CheckFailed) as failed:
        ChoiceCheck("choose", Choosing()).everything()
    assert message in str(failed.value)


def test_an_error_on_the_ranks_says_in_which_case():
    class Raising(Answering):
        def call(self, what, arguments, show=False):
            raise ValueError("could not broadcast")

    with pytest.raises(ValueError, match="could not broadcast") as failed:
        CollectivesCheck("tree_broadcast", Raising("tree_broadcast", in_ring(1))).run(4, 8, "int32", root=2)
    (note,) = failed.value.__notes__
    assert note == "This was the case: the group {0, 1, 2, 3}, int32, x of shape (8,), root 2."


@pytest.mark.parametrize("sent", [[[1, 2], [3], [], []], [[2, 1], [], [3], []], [[1, 3], [2], [], []]])
def test_a_tree_of_two_steps_passes(sent):
    CollectivesCheck("tree_broadcast", Answering("tree_broadcast", [[(to, 64) for to in mine] for mine in sent])).run(4, 8)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ([[1, 2, 3], [], [], []], "rank 3 has the array after 3 steps; 2 are enough for 4 ranks"),
        ([[1], [2], [3], []], "rank 3 has the array after 3 steps"),
        ([[2, 1], [3], [], []], "rank 3 has the array after 3 steps"),
        ([[1, 1, 2], [3], [], []], "rank 0 sends rank 1 64 bytes that it has already"),
        ([[1, 2], [3], [0], []], "rank 2 sends rank 0 64 bytes that it has already"),
        ([[1, 2], [], [], []], "nobody sends rank 3 the array"),
    ],
)
def test_a_slow_tree_is_named(sent, message):
    assert message in said("tree_broadcast", [[(to, 64) for to in mine] for mine in sent])


def test_ranks_that_all_begin_with_rank_0_are_named():
    naive = [[(to, 16) for to in range(4) if to != r] for r in range(4)]
    assert "in step 1, 3 ranks send to rank 0 at once" in said("pairwise_all_to_all", naive)
    in_pairs = [[(r ^ s, 16) for s in (1, 2, 3)] for r in range(4)]
    CollectivesCheck("pairwise_all_to_all", Answering("pairwise_all_to_all", in_pairs)).run(4, 2)


@pytest.mark.parametrize("n", [4, 8, 1024])
def test_both_algorithms_take_equally_long_where_the_check_says(n):
    alpha, beta = 2e-5, 3e9
    at = equal_bytes(n, alpha, beta)
    assert 2 * (n - 1) * (alpha + at / n / beta) == pytest.approx(np.log2(n) * (alpha + at / beta))


def test_a_result_that_the_callers_next_values_change_is_named():
    class Sharing(Answering):
        def call(self, what, arguments, show=False):
            return [(out, x, out + 1, []) for out, x, *_ in super().call(what, arguments, show)]

    check = CollectivesCheck("ring_reduce_scatter", Sharing("ring_reduce_scatter", in_ring(1)))
    with pytest.raises(CheckFailed, match=r"when the caller has reused x, on rank 0 .* a view of an argument"):
        check.run(4, 8)


class Alone:
    """Ranks that are none: what they would run, runs here."""

    def call(self, what, arguments, show=False):
        return [what(**each) for each in arguments]


def by_doubling(x, comm, root):
    n, place, result, have = comm.Get_size(), (comm.Get_rank() - root) % comm.Get_size(), x.copy(), 1
    while have < n:
        if place < have and place + have < n:
            comm.Send(result, (place + have + root) % n)
        elif have <= place < 2 * have:
            comm.Irecv(result, (place - have + root) % n).Wait()
        have *= 2
    return result


def as_a_heap(x, comm, root):
    n, place, result = comm.Get_size(), (comm.Get_rank() - root) % comm.Get_size(), x.copy()
    if place:
        comm.Recv(result, ((place - 1) // 2 + root) % n)
    for child in (2 * place + 1, 2 * place + 2):
        if child < n:
            comm.Isend(result, (child + root) % n).Wait()
    return result


def test_a_tree_that_is_fast_on_four_ranks_only_is_named(monkeypatch):
    check = CollectivesCheck("tree_broadcast", Alone())
    monkeypatch.setattr(on_ranks, "student", lambda name: by_doubling)
    for size in range(1, 20):
        check.larger(size)
    monkeypatch.setattr(on_ranks, "student", lambda name: as_a_heap)
    check.larger(1, 2, 3, 4).larger(5, 6)
    for size in (7, 8, 11):
        with pytest.raises(CheckFailed, match=f"are enough for {size} ranks, for a group of {size} virtual"):
            check.larger(5, size)
    CollectivesCheck("tree_broadcast", Alone(), cost=False).larger(7, 8, 11)


def for_four_ranks(x, comm, op):
    """Recursive doubling in two steps."""
    rank, result, received = comm.Get_rank(), x.copy(), np.empty_like(x)
    for partner in (rank ^ 1, rank ^ 2):
        comm.Sendrecv(result, partner, recvbuf=received, source=partner)
        result = op(result, received)
    return result


def test_an_answer_for_four_ranks_fails_on_more(monkeypatch):
    monkeypatch.setattr(on_ranks, "student", lambda name: for_four_ranks)
    check = CollectivesCheck("ring_all_reduce", Alone(), cost=False).larger(4)
    with pytest.raises(CheckFailed, match=r"ring_all_reduce on rank 0 .* for a group of 8 virtual ranks"):
        check.larger(8)
    with pytest.raises(ValueError, match="must be a rank of the group, 0 to 4; got 5") as failed:
        check.larger(5)
    assert failed.value.__notes__ == ["This was the case: a group of 5 virtual ranks on rank 0."]
