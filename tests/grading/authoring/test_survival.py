"""Part 37's checks: a right answer passes whatever is drawn, and the same run comes out every time."""

import pytest

from course_lib.check.survival.check import AgreementCheck, SurvivalCheck
from course_lib.cluster import Ranks
from course_lib.sandbox import bubblewrap
from grading.authoring import answers

PART = "37_survival"
SETUP = "import copy\nimport itertools\nimport numpy as np\nfrom course_lib.collectives import Communicator\neveryone = Communicator()"


@pytest.fixture(scope="module")
def ranks():
    """Isolated ranks with the solution."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(bubblewrap.ISOLATION_VARIABLE, bubblewrap.UNSANDBOXED)
        found = Ranks(4)
        for source in (SETUP, *(answers.solution(PART, name) for name in ("hear", "agree", "FaultTolerantDiLoCo"))):
            assert not [reply["error"] for _, reply in found.run(source) if reply["error"]]
        yield found
    found.stop()


@pytest.mark.parametrize("seed", range(2))
def test_the_solution_passes_whatever_is_drawn(ranks, seed, monkeypatch):
    monkeypatch.setenv("COURSE_SEED", str(seed))
    AgreementCheck("hear", ranks, show=False).rounds()
    AgreementCheck("agree", ranks, show=False).agreements()
    SurvivalCheck("survivors", ranks, show=False).survivors()
    SurvivalCheck("returns", ranks, show=False).returns()


def test_a_run_is_the_same_every_time(ranks):
    logs = []
    for _ in range(5):
        network = ranks.isolated.broker.coordinator.network
        network.plan_silence(1, 2.5, round=(2, 1), through={0})
        network.plan_silence(3, 1.7, since=4.0)
        check = SurvivalCheck("once more", ranks, show=False)
        check.random.bit_generator.state = {**check.random.bit_generator.state, "state": {"state": 7, "inc": 9}}
        check._run("two silences", {}, steps=8, home=set(), cut=([{0}, {2}], 0.4))
        logs.append([[entry for entry in network.log if entry[2] == r] for r in range(4)])
    assert all(log == logs[0] for log in logs) and len(logs[0][0]) > 50


def test_an_answer_that_does_not_agree_is_found(ranks):
    ranks.run("def agree(mail, step, proposal, patience):\n    return proposal")
    with pytest.raises(AssertionError, match=r"do not agree|without enough ranks"):
        AgreementCheck("agree", ranks, show=False).agreements()
    ranks.run(answers.solution(PART, "agree"))
