"""Part 34's workloads, and the policy with which the hidden tests compare a scheduler."""

import numpy as np
import pytest

from course_lib.check.serving.scheduler import COST, Arrival, Workload, draw_workloads, static_seconds
from grading.authoring.serving_cases import policy_seconds


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
