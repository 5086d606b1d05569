"""Part 34's checks: each drawn case tells right from wrong."""

import numpy as np
import pytest

from course_lib.check import CheckFailed
from course_lib.check.serving import CacheCheck, SchedulerCheck
from course_lib.check.serving.forward import RTOL
from course_lib.check.serving.reference import full_forward, random_weights, rank_logits
from course_lib.check.serving.scheduler import Arrival, Workload, _Follow
from course_lib.gpt.model import Sizes


@pytest.mark.parametrize("seed", range(10))
def test_calls_meet_a_full_cache_and_a_free_one_and_many_texts(seed):
    check = CacheCheck("PagedCache", None, show=False)
    check.random = np.random.default_rng(seed)
    blocks, size = 12, 4
    tokens, refused, fitted, grown = {}, {"allocate": 0, "append": 0}, 0, 0
    for method, number, *more in check._story(blocks, size):
        free = blocks - sum(-(-n // size) for n in tokens.values())
        if method == "free":
            tokens.pop(number, None)
            continue
        count = more[0] if more else tokens[number] + 1
        need = -(-count // size) - -(-tokens.get(number, 0) // size)
        if need > free:
            refused[method] += 1
            continue
        fitted += need == free > 0
        grown += method == "append" and need > 0
        tokens[number] = count
    assert not tokens and min(*refused.values(), fitted, grown) > 20


def follow(texts, blocks=4, size=2, most=2):
    check = SchedulerCheck("Scheduler", None, show=False)
    state = _Follow(Workload("a story", blocks, size, most, texts))
    return check, state


def step(check, state, at, prefill, decode, slots, oldest=True):
    told = state.request(at)
    check._step(state, 0, [], prefill, decode, [np.array(one) for one in slots], [], oldest=oldest)
    return told


def test_a_text_keeps_its_keys_and_is_done_when_it_is():
    check, state = follow([Arrival(0, 3, 9, 2), Arrival(0, 1, 2, 2)])
    assert step(check, state, 0, [0, 1], [], [[4, 5, 0], [2]]) == dict(new=[(0, 3, 9), (1, 1, 2)], tokens=[], ended=[])
    assert step(check, state, 1, [], [0, 1], [[4, 5, 0, 1], [2, 3]]) == dict(new=[], tokens=[0, 1], ended=[])
    assert state.request(2) == dict(new=[], tokens=[0, 1], ended=[0]) and state.over(2)  # text 1 has reached its limit


WRONG = {
    "a slot of another text": ([0, 1], [], [[4, 5, 0], [5]], "write into the same slot"),
    "a slot that is not there": ([0, 1], [], [[4, 5, 8], [2]], "outside of the cache"),
    "too few slots": ([0, 1], [], [[4, 5], [2]], "has 2 slots, but 3 tokens"),
    "decoded at once": ([0], [1], [[4, 5, 0], [2, 3]], "has 2 slots, but 1 tokens"),
    "twice": ([0, 1, 0], [], [[4, 5, 0], [2], [4, 5, 0]], "twice in a batch"),
    "the oldest waits": ([1], [], [[2]], "the oldest text is not in the batch"),
    "nobody": ([], [], [], "returned no text, although 2 are not done"),
    "unknown": ([0, 7], [], [[4, 5, 0], [2]], "text 7 is in a batch"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_batch_is_named(case):
    prefill, decode, slots, said = WRONG[case]
    check, state = follow([Arrival(0, 3, 9, 2), Arrival(0, 1, 2, 2)])
    with pytest.raises(CheckFailed, match=said):
        step(check, state, 0, prefill, decode, slots)


def test_a_preempted_text_must_be_prefilled_again():
    check, state = follow([Arrival(0, 3, 9, 6), Arrival(0, 2, 2, 2)], most=2)
    step(check, state, 0, [0, 1], [], [[4, 5, 0], [2, 3]])
    step(check, state, 1, [], [0], [[4, 5, 0, 1]])
    step(check, state, 2, [], [0], [[4, 5, 0, 1, 2]])  # a slot of text 1, which has been preempted
    with pytest.raises(CheckFailed, match="keys and values of its token 0 are not in its slot"):
        step(check, state, 3, [], [0, 1], [[4, 5, 0, 1, 2, 6], [2, 3, 7]])


def test_batches_have_a_largest_size():
    check, state = follow([Arrival(0, 1, 9, 2) for _ in range(3)])
    with pytest.raises(CheckFailed, match="has 3 texts"):
        step(check, state, 0, [0, 1, 2], [], [[0], [1], [2]])


MISTAKES = {
    "positions": dict(shift=1),
    "a token sees later ones": dict(sees=9),
    "a token does not see itself": dict(sees=-1),
    "keys and values": dict(swapped=True),
    "no sum of attention": dict(sums=(False, True)),
    "no sum of the MLP": dict(sums=(True, False)),
    "no sums": dict(sums=(False, False)),
    "side by side": dict(beside=True),
    "x is lost": dict(share=0.0),
    "x in each summand": dict(share=2.0),
}


def test_known_mistakes_give_other_logits_than_the_whole_model_and_than_each_other():
    random = np.random.default_rng(0)
    sizes = Sizes(12, 12, 4, 2, 16)
    weights, tokens = random_weights(random, sizes, np.float64), random.integers(0, 12, 6).tolist()
    want, kept = full_forward(weights, sizes, tokens)
    assert np.allclose(np.concatenate(rank_logits(weights, sizes, tokens, 2), axis=1), want)
    last = rank_logits(weights, sizes, tokens, 2, kept=kept)
    assert np.allclose(np.concatenate(last, axis=1), want[-1:])
    assert np.allclose(rank_logits(weights, sizes, tokens, 2, kept=kept, late=kept[:, :, -1]), last)
    for imposed in (None, kept):
        found = {what: rank_logits(weights, sizes, tokens, 2, kept=imposed, **how)[:, -1] for what, how in MISTAKES.items()}
        found["right"] = last[:, -1]
        if imposed is not None:
            del found["a token sees later ones"]  # the last token has none
        for what, logits in found.items():
            others = [other for name, other in found.items() if name != what]
            assert all(np.abs(logits - other).max() > 100 * RTOL[np.float32] for other in others), what
