"""The deciding feature of each case of part 29: any case that is drawn has it."""

import dataclasses
from functools import cache

import pytest

from course_lib.check import CheckFailed
from course_lib.cluster import Ranks
from course_lib.cluster.replies import RanksError
from course_lib.sim.llm.analytic import estimate
from course_lib.sim.llm.cluster import A100_DEVICE, Cluster
from course_lib.sim.llm.configuration import problems
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.transformer import MODEL_PRESETS
from course_lib.sim.plan import check, contract
from course_lib.sim.plan.cases import EXAMPLES, MEMORY_BOUND
from course_lib.sim.plan.search import best as found
from course_lib.sim.plan.search import configurations
from grading.authoring.cases.plan import CASES
from grading.submission.preprocessors import SUBMISSION_CELL_SECONDS

WITHOUT = {
    "few axes": lambda c: c.tensor > 1 or c.pipeline > 1,
    "interleave": lambda c: c.interleave == 1,
    "positions": lambda c: not c.sequence_parallel,
    "micro-batches": lambda c: c.micro_batch in (1, 2, 4, 8, 16),
}
DRAWN = [(need, one) for cases in (CASES, EXAMPLES) for needs in cases.values() for need, some in needs.items() for one in some]
HIDDEN = [one for needs in CASES.values() for some in needs.values() for one in some]


@cache
def stored():
    """The best configuration of each case that students have."""
    return [found(*check.build_case(one), 1)[0].configuration for needs in EXAMPLES.values() for some in needs.values() for one in some]


@pytest.mark.slow
@pytest.mark.parametrize(("need", "one"), DRAWN, ids=str)
def test_who_leaves_out_what_a_case_is_about_loses_all_its_points(need, one):
    model, cluster = check.build_case(one)
    sizes = [n for n in range(1, check.MAX_MICRO_BATCH + 1) if model.batch % n == 0]
    some = sorted(((*estimate(model, cluster, c), c) for c in configurations(model, cluster, sizes)), key=lambda one: one[0])
    some = [c for _, nbytes, c in some if nbytes < 1.01 * cluster.device.memory]

    def least(keep):
        steps = [simulate(model, cluster, c, keep=False) for c in [c for c in some if keep(c)][:12]]
        return min((step.seconds for step in steps if step.fits), default=None)

    best = least(lambda c: True)
    if need == MEMORY_BOUND:
        assert all(c.recompute != "none" and (c.sharded_optimizer or c.data == 1) for c in some)
        if model.fused and cluster.gpus < 64:
            assert all(c.recompute == "full" for c in some)
        assert max(least(keep) for need, keep in WITHOUT.items() if need != "few axes") < contract.MEMORY_CASES.number * best
    else:
        assert least(WITHOUT[need]) > contract.ZERO_POINTS.number * best


@pytest.mark.slow
@pytest.mark.parametrize("one", HIDDEN, ids=str)
def test_an_answer_stored_for_what_students_have_is_none_for_a_hidden_case(one):
    model, cluster = check.build_case(one)
    steps = [simulate(model, cluster, c, keep=False) for c in stored() if not any(problems(model, cluster, c))]
    assert all(not step.fits or step.seconds > contract.ZERO_POINTS.number * check.least_seconds(model, cluster) for step in steps)


@pytest.fixture
def one_rank():
    ranks = Ranks(1)
    yield ranks
    ranks.stop()


def test_the_students_check_ends_a_search_as_grading_does_and_misleads_nobody_who_found_none(one_rank, monkeypatch):
    assert contract.SEARCH_SECONDS.number == SUBMISSION_CELL_SECONDS
    monkeypatch.setattr(contract, "SEARCH_SECONDS", dataclasses.replace(contract.SEARCH_SECONDS, number=1))
    case = MODEL_PRESETS["7b"], Cluster(A100_DEVICE, 16)
    one_rank.run("import time\ndef plan(model, cluster): time.sleep(30)")
    with pytest.raises(RanksError, match="was still running after 1 s"):
        check.PlanCheck(one_rank).choose(*case)
    one_rank.run("def plan(model, cluster):\n    best = None\n    return best")
    with pytest.raises(CheckFailed, match=r"got NoneType[^!]*no configuration that fits"):
        check.PlanCheck(one_rank).choose(*case)
