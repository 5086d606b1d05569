"""Part 33: the planted faults are what they claim to be, and the six runs have the bugs that the text describes."""

import numpy as np
import pytest

from course_lib.check.silent_bug import check, model
from course_lib.check.silent_bug.close_pairs import draw_pairs
from course_lib.check.silent_bug.faults import DISTORTIONS
from course_lib.gpt import silent_bugs
from course_lib.gpt.silent_bugs import DTYPES, Finding, epsilon, rounded
from course_lib.mesh import Mesh
from grading.authoring import answers

PART = "33_silent_bug"


def solved(*names, **more):
    """The solutions of exercises of part 33, in a namespace of their own."""
    names_there = {name: getattr(silent_bugs, name) for name in silent_bugs.__all__} | {"np": np} | more
    for name in names:
        exec(answers.solution(PART, name), names_there)
    return names_there


class Recorded:
    """A case's step, whose results on the mesh are places in the case's lists."""

    def __init__(self, case):
        step, self.calls = case.step, 0
        self.names, self.sharded, self.dtype, self.terms = step["names"], step["sharded"], step["dtype"], step["terms"]
        self.network = step["parameters"], step["scale"], step["dtype"]

    def __call__(self, batch, mesh):
        if mesh is None:
            parameters, scale, dtype = self.network
            return dict(zip(self.names, model.one_rank(parameters, batch, scale, dtype), strict=True))
        self.calls += 1
        return {name: (self.calls - 1, at) for at, name in enumerate(self.names)}


class WithoutRanks(check.SilentBugCheck):
    """The check's cases, given to the solution in this process."""

    def compare(self, *cases, beside=None):
        for case in (*cases, *([beside] if beside else [])):

            def held_by_all(place, mesh, case=case):
                step, at = place
                return [np.array(case.results[r][step][at]) for r in range(mesh.size)]

            found = solved("close_enough", "compare_with_one_rank", held_by_all=held_by_all)["compare_with_one_rank"](
                Recorded(case), case.step["batches"], Mesh(**case.axes)
            )
            self.case = case.about
            self._finding(None if found is None else tuple(found), case, 0)
        return self


@pytest.mark.parametrize("what", ["examples", "kinds", "others", "roundings"])
def test_the_solution_finds_each_fault_and_accuses_no_right_run(what):
    for _ in range(3):
        getattr(WithoutRanks(what, None), what)()


def test_a_finding_of_nothing_or_of_anything_is_wrong():
    seen = []

    class Guess(check.SilentBugCheck):
        def compare(self, *cases, beside=None):
            seen.append({case.expected is None for case in cases})
            for guess in (None, Finding("loss", None, "other")):
                wrong = [case for case in cases if case.expected != guess]
                assert wrong, "a guess would be right everywhere"
            return self

    for what in ("kinds", "others", "roundings"):
        getattr(Guess(what, None), what)()
    assert all(answers == {True, False} for answers in seen)


@pytest.mark.parametrize("name", DISTORTIONS)
def test_a_distortion_changes_an_array_whatever_is_drawn(name):
    for seed in range(5000):
        random = np.random.default_rng(seed)
        array = random.standard_normal(24)  # of the smallest parameter
        changed = DISTORTIONS[name](array, random)
        assert not (np.abs(changed - array) <= (1e-4 if name == "16 bits" else 0.1) * np.abs(array).max()).all()


def test_pairs_of_each_format_have_both_answers_and_the_solution_knows_them():
    close_enough = solved("close_enough")["close_enough"]
    for _ in range(5):
        pairs = draw_pairs(np.random.default_rng())
        assert {(pair.dtype, pair.close) for pair in pairs} == {(dtype, close) for dtype in DTYPES for close in (True, False)}
        assert [pair for pair in pairs if close_enough(pair.a, pair.b, pair.dtype, pair.terms) is not pair.close] == []


@pytest.mark.parametrize("seed", range(3))
def test_no_number_of_epsilons_serves_few_terms_and_many(seed):
    needed, allowed = 0.0, np.inf
    for pair in draw_pairs(np.random.default_rng(seed)):
        if pair.a.shape == pair.b.shape and pair.a.size and np.isfinite(pair.a).all() and np.isfinite(pair.b).all():
            a, b = pair.a.astype(float), pair.b.astype(float)
            error = np.abs(a - b).max() / epsilon(pair.dtype) / (max(np.abs(a).max(), np.abs(b).max()) or 1)
            needed, allowed = (max(needed, error), allowed) if pair.close else (needed, min(allowed, error))
    assert needed > 1.2 * allowed


def test_bfloat16_is_rounded_as_ml_dtypes_does():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32) * np.float32(10.0) ** np.arange(-5, 5).repeat(1000)
    assert np.array_equal(rounded(x, "bfloat16"), x.astype(bfloat16).astype(np.float32))
    assert epsilon("bfloat16") == float(np.nextafter(bfloat16(1), bfloat16(2)).astype(np.float32)) - 1


FOUND = {
    "A": ("loss", "dp", "missing sum"),
    "B": ("3.words.weight", None, "factor"),
    "C": ("3.words.weight", None, "some samples"),
    "D": ("2.qkv.weight", None, "other"),
    "E": ("3.norm.bias", "tp", "missing sum"),
    "F": ("0.words.weight", None, "stale"),
}


def test_each_of_the_six_runs_has_its_bug_and_two_are_repaired(eight):
    given = {name: answers.solution(PART, name) for name in ("close_enough", "compare_with_one_rank", "accumulate", "own_gradients")}

    def findings(given):
        import numpy as np

        from course_lib.collectives import Communicator
        from course_lib.gpt import silent_bugs, text
        from course_lib.gpt.silent_bugs import looking, step

        world = Communicator()
        four = world.Split(color=world.Get_rank() // 4, key=world.Get_rank())
        names = {name: getattr(silent_bugs, name) for name in silent_bugs.__all__} | {name: getattr(step, name) for name in dir(step)}
        names["np"] = np
        for source in given.values():
            exec(source, names)
        words, _ = text.load_and_broadcast(four)
        repairs = {"C repaired": {"accumulate": names["accumulate"]}, "D repaired": {"own_gradients": names["own_gradients"]}}
        found = {}
        for run in (*"ABCDEF", *repairs):
            one = looking.start(run[0], four, **repairs.get(run, {}))
            got = names["compare_with_one_rank"](one, [step.batch_of(words, i) for i in range(2)], one.mesh)
            found[run] = None if got is None else tuple(got[:3])
        return found

    for found in eight.call(findings, dict(given=given)):
        assert found == FOUND | {"C repaired": None, "D repaired": None}
