"""How part 29's `plan` is put to the test: cases are drawn from a list, and the best configuration of each is searched for here."""

from __future__ import annotations

from dataclasses import replace

from course_lib import wording
from course_lib.check import Check
from course_lib.cluster import time_limits
from course_lib.engine.namespace import student
from course_lib.sim.core.hardware import GIB
from course_lib.sim.llm.cluster import DEVICES, Cluster
from course_lib.sim.llm.configuration import Configuration, PlanError, problems
from course_lib.sim.llm.events import Step, simulate
from course_lib.sim.llm.transformer import Transformer
from course_lib.sim.plan.cases import EXAMPLES, MEMORY_BOUND, Case, Cases
from course_lib.sim.plan.search import best

FULL_POINTS_RATIO, ZERO_POINTS_RATIO = 1.04, 1.08  # times the best step: up to the first all points, from the second on none
MAX_RATIO_MEMORY_CASES = 1.5  # times the best step that a choice may take where only memory counts
MAX_MICRO_BATCH = 16  # texts of a micro-batch, at most
SEARCH_TIMEOUT_SECONDS = 30.0  # that a search may take, as when grading on one's own machine; elsewhere, grading says how long


def call_plan(model, cluster):
    """On the rank: call plan. The course's own search cannot be imported meanwhile; while it is graded, a rank does not have it at all."""
    plan = student("plan")
    import sys

    from course_lib.sim.llm.configuration import Configuration
    from course_lib.sim.llm.transformer import Transformer

    room = "course_lib.sim.plan"
    before = {name: module for name, module in sys.modules.items() if name.startswith(room)}
    try:
        sys.modules.update(dict.fromkeys([room, *before]))
        found = plan(Transformer(**model), _build_cluster(cluster))
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(room):
            raise
        sentence = "the course's own search is not there while plan is tested: finding the configuration is the exercise."
        raise RuntimeError(sentence) from None
    finally:
        sys.modules.pop(room, None)
        sys.modules.update(before)
    return dict(vars(found)) if isinstance(found, Configuration) else type(found).__name__


def _build_cluster(plain):
    from course_lib.sim.core.hardware import Link
    from course_lib.sim.llm.cluster import Cluster, Device

    def links(plain):
        return {name: Link(**plain[name]) for name in ("inside", "network")}

    return Cluster(**plain | links(plain) | dict(device=Device(**plain["device"] | links(plain["device"]))))


class PlanCheck(Check):
    """Has `plan` choose, and compares with the best that there is.

    Parameters
    ----------
    ranks : Ranks
        One rank.
    cases : dict
        To draw from. Those of the hidden tests are in no student's hands.
    show : bool
        Whether messages may contain expected values.
    """

    def __init__(self, ranks, cases: Cases = EXAMPLES, *, show: bool = True):
        super().__init__("plan", show=show)
        self.ranks, self.cases = ranks, cases

    def choose(self, model: Transformer, cluster: Cluster, least: float | None = None) -> tuple[Step, float]:
        """What plan's choice takes, and how many times the best step (of `least` seconds, if that is known) it is.

        CheckFailed if it cannot be trained so.
        """
        self.case = f"{model.name} on {cluster.gpus} × {cluster.device.name.split()[0]} with {cluster.device.memory / GIB:.0f} GiB"
        arguments, limit = (
            dict(model=dict(vars(model)), cluster=_to_plain(cluster)),
            max(SEARCH_TIMEOUT_SECONDS, time_limits.limit(call=True) or 0),
        )
        answer = self.ranks.call(call_plan, arguments, limit=limit, show=self.show)[0]
        if not isinstance(answer, dict):
            nothing = "a search that has kept none, as none seemed to fit, or a missing return"
            usual = nothing if answer == "NoneType" else "its fields alone, or a step: that has a .configuration"
            self.fail(f"plan must return a Configuration; got {str(answer)[:60]}", usual)
        try:
            configuration = Configuration(**answer)
            for problem in problems(model, cluster, configuration):
                self.fail(f"plan has chosen what does not fit together: {problem.rstrip('.')}")
            step = simulate(model, cluster, configuration, keep=False)
        except (TypeError, ValueError) as error:
            self.fail(f"plan has chosen what is no configuration: {wording.shown(error)}")
        if not step.fits:
            room = f"{wording.memory(step.peak)}, and a device has {wording.memory(cluster.device.memory)}"
            usual = "what estimate gives second was not looked at, or memory was counted without activations"
            self.fail(f"plan has chosen {configuration}, which takes {room}", usual)
        if least is None:
            try:
                least = least_seconds(model, cluster)
            except PlanError:  # the search has found nothing, and plan has
                least = step.seconds
        return step, step.seconds / min(step.seconds, least)

    @staticmethod
    def worth(times: float) -> float:
        """What a choice earns whose step takes so many times the best one's, from 0 to 1."""
        return min(max((ZERO_POINTS_RATIO - times) / (ZERO_POINTS_RATIO - FULL_POINTS_RATIO), 0.0), 1.0)

    def fits(self, size: str) -> PlanCheck:
        """Have plan choose where memory decides, on "small" or "large" clusters; CheckFailed where it fails, or is far too slow."""
        _, times = self.choose(*self.draw(size, MEMORY_BOUND))
        if times > MAX_RATIO_MEMORY_CASES:
            self.fail(f"plan has chosen a step that takes {times:.2f} times the best one, and {MAX_RATIO_MEMORY_CASES:g} times is the most")
        return self

    def score(self, size: str) -> float:
        """What plan's slowest choice is worth, of one for each thing that can make the difference, on "small" or "large" clusters."""
        return min(self.worth(self.choose(*self.draw(size, need))[1]) for need in self.cases[size])

    def draw(self, size: str, need: str) -> tuple[Transformer, Cluster]:
        """A model and a cluster for which `need` makes the difference."""
        cases = self.cases[size][need]
        return build_case(cases[int(self.random.integers(len(cases)))], float(self.random.uniform(0.045, 0.055)))


def build_case(one: Case, overhead: float = 0.05) -> tuple[Transformer, Cluster]:
    """The model and the cluster of a case."""
    gpus, name, memory, slower, layers, heads, sequence, vocabulary, batch, gated, fused, dropout = one
    shape = dict(layers=layers, hidden=128 * heads, heads=heads, sequence=sequence, vocabulary=vocabulary, batch=batch)
    model = Transformer("a model", **shape, gated=bool(gated), fused=bool(fused), dropout=bool(dropout))
    device = replace(DEVICES[name], name=name.upper(), memory=memory * GIB)
    network = replace(device.network, bandwidth=device.network.bandwidth / slower)
    return model, Cluster(device, gpus, network=network, overhead=overhead)


def least_seconds(model: Transformer, cluster: Cluster) -> float:
    """Of the best step, with micro-batches of any size."""
    sizes = [n for n in range(1, MAX_MICRO_BATCH + 1) if model.batch % n == 0]
    return best(model, cluster, 1, max_simulated=12, micro_batches=sizes)[0].seconds


def _to_plain(thing: object) -> object:
    """A cluster as dicts of numbers and texts."""
    return {name: _to_plain(value) for name, value in vars(thing).items()} if hasattr(thing, "__dict__") else thing
