"""Part 34's workloads, and the policy with which the hidden tests compare a scheduler."""

import numpy as np
import pytest

from course_lib.check.serving.scheduler import COST, Arrival, Workload, draw_workloads, run_policy, static_seconds
from course_lib.gpt.serving.simulation import StaticScheduler
from grading.authoring.cases.serving import policy_seconds


@pytest.mark.parametrize("seed", range(40))
def test_each_workload_can_be_served_faster_than_static_batching_and_its_texts_fit(seed):
    workloads = draw_workloads(np.random.default_rng(seed))
    assert sum(map(static_seconds, workloads)) > 1.05 * sum(map(policy_seconds, workloads))
    for workload in workloads:
        for text in workload.texts:
            assert text.prompt + text.limit <= workload.blocks * workload.block_size and text.real <= text.limit
        assert [text.step for text in workload.texts] == sorted(text.step for text in workload.texts)


def test_the_policy_takes_the_seconds_that_one_counts_by_hand():
    texts = [Arrival(0, 2, 9, 3), Arrival(0, 2, 9, 2), Arrival(1, 1, 9, 1), Arrival(1, 1, 9, 5, gone=1)]
    # Three blocks of two tokens, two texts at a time: prefill both; text 0 grows, and text 1 gives way; text 1 again; text 0; ...
    steps = [COST([2, 2], 0), COST([], 1), COST([], 1), COST([3, 1], 0)]
    assert policy_seconds(Workload("a story", 3, 2, 2, texts)) == pytest.approx(sum(steps))


class Blocks:
    """A cache that counts blocks only."""

    def __init__(self, workload):
        self.blocks, self.block_size, self.held = workload.blocks, workload.block_size, {}

    def allocate(self, number, tokens):
        need = -(-(self.held.get(number, 0) + tokens) // self.block_size)
        others = sum(-(-held // self.block_size) for other, held in self.held.items() if other != number)
        fits = need + others <= self.blocks
        if fits:
            self.held[number] = self.held.get(number, 0) + tokens
        return fits

    def append(self, number):
        return self.allocate(number, 1)

    def free(self, number):
        self.held.pop(number, None)


class Batches(StaticScheduler):
    """Static batching that reserves nothing: the youngest texts make room."""

    def next_batch(self):
        for text in [text for text in (*self.running, *self.waiting) if text.done]:
            self.cache.free(text.number)
            (self.running if text in self.running else self.waiting).remove(text)
        for text in list(self.running):
            while text in self.running and not self.cache.append(text.number):
                self.waiting.insert(0, self.running.pop())
                self.cache.free(self.waiting[0].number)
        decode = list(self.running)
        while self.waiting and not decode and len(self.running) < self.most:
            if not self.cache.allocate(self.waiting[0].number, len(self.waiting[0].tokens)):
                break
            self.running.append(self.waiting.pop(0))
        return self.running[len(decode) :], decode


@pytest.mark.parametrize("seed", range(20))
def test_static_batching_is_too_slow_and_nine_tenths_of_the_policy_are_not(seed):
    workloads = draw_workloads(np.random.default_rng(seed))
    enough = sum(map(static_seconds, workloads))
    assert sum(map(policy_seconds, workloads)) / 0.9 < 0.98 * enough
    for kind in (StaticScheduler, Batches):
        assert sum(run_policy(kind(Blocks(w), w.most), w) for w in workloads) > 1.04 * enough
