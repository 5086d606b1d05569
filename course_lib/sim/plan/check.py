"""Check of part 29's `plan`: its choices for cases drawn from a list against the best configurations found here."""

from __future__ import annotations

from dataclasses import replace

from course_lib.check import Check
from course_lib.cluster import time_limits
from course_lib.engine.namespace import student
from course_lib.sim.core.hardware import GIB
from course_lib.sim.llm.cluster import DEVICE_PRESETS, Cluster
from course_lib.sim.llm.configuration import Configuration, PlanError, problems
from course_lib.sim.llm.events import Step, simulate
from course_lib.sim.llm.transformer import Transformer
from course_lib.sim.plan import contract
from course_lib.sim.plan.cases import EXAMPLES, MEMORY_BOUND, Case, Cases
from course_lib.sim.plan.search import best
from course_lib.utils import wording

MAX_MICRO_BATCH = 16  # texts per micro-batch, at most


def call_plan(model, cluster):
    """Call plan on the rank, with imports of the course's own search blocked; ranks that are graded do not have it at all."""
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
        sentence = "the course's own search is not available while plan is tested: finding the configuration is the exercise."
        raise RuntimeError(sentence) from None
    finally:
        sys.modules.pop(room, None)
        sys.modules.update(before)
    return dict(vars(found)) if isinstance(found, Configuration) else type(found).__name__


def _build_cluster(plain):
    from course_lib.sim.core.hardware import Link
    from course_lib.sim.llm.cluster import Cluster, Device
    from course_lib.sim.llm.hardware.software import Software

    def links(plain):
        return {name: Link(**plain[name]) for name in ("inside", "network")}

    device, software = Device(**plain["device"] | links(plain["device"])), Software(**plain["software"])
    return Cluster(**plain | links(plain) | dict(device=device, software=software))


class PlanCheck(Check):
    """Check of `plan`: compares its choices with the best configurations.

    Parameters
    ----------
    ranks : Ranks
        One rank.
    cases : dict
        Cases to draw from. Students never see those of the hidden tests.
    show : bool
        Whether messages may contain expected values.
    """

    def __init__(self, ranks, cases: Cases = EXAMPLES, *, show: bool = True):
        super().__init__("plan", show=show)
        self.ranks, self.cases = ranks, cases

    def choose(self, model: Transformer, cluster: Cluster, least: float | None = None) -> tuple[Step, float]:
        """Simulate plan's choice; return the step, and its time relative to the best (`least` seconds, if known).

        Raises CheckFailed if the model cannot be trained with it.
        """
        self.case = f"{model.name} on {cluster.gpus} × {cluster.device.name.split()[0]} with {cluster.device.memory / GIB:.0f} GiB"
        self.covers("sizes", "repetition")
        arguments, limit = (
            dict(model=dict(vars(model)), cluster=_to_plain(cluster)),
            max(contract.SEARCH_SECONDS.number, time_limits.limit(call=True) or 0),
        )
        answer = self.ranks.call(call_plan, arguments, limit=limit, show=self.show)[0]
        if not isinstance(answer, dict):
            nothing = "a search that found no configuration that fits, or a missing return"
            usual = nothing if answer == "NoneType" else "its fields only, or a Step instead of its .configuration"
            self.fail(f"plan must return a Configuration; got {str(answer)[:60]}", usual)
        try:
            configuration = Configuration(**answer)
            for problem in problems(model, cluster, configuration):
                self.fail(f"plan has chosen an inconsistent configuration: {problem.rstrip('.')}")
            step = simulate(model, cluster, configuration, keep=False)
        except (TypeError, ValueError) as error:
            self.fail(f"plan has not chosen a valid configuration: {wording.shown(error)}")
        if not step.fits:
            room = f"{wording.memory(step.peak)}, but a device has {wording.memory(cluster.device.memory)}"
            usual = "ignoring the second value of estimate, or counting memory without activations"
            self.fail(f"plan has chosen {configuration}, which takes {room}", usual)
        if least is None:
            try:
                least = least_seconds(model, cluster)
            except PlanError:  # plan has found a configuration that the search has not
                least = step.seconds
        return step, step.seconds / min(step.seconds, least)

    @staticmethod
    def worth(times: float) -> float:
        """Score, 0 to 1, of a choice whose step takes `times` the best step's time."""
        full, zero = contract.FULL_POINTS.number, contract.ZERO_POINTS.number
        return min(max((zero - times) / (zero - full), 0.0), 1.0)

    def fits(self, size: str) -> PlanCheck:
        """Check choices where memory decides, on "small" or "large" clusters; CheckFailed if one does not fit, or is far too slow."""
        _, times = self.choose(*self.draw(size, MEMORY_BOUND))
        allowed = contract.MEMORY_CASES.number
        if times > allowed:
            problem = f"plan has chosen a step that takes {times:.2f} times as long as the best one; {allowed:g} times is allowed"
            self.fail(problem, limit=contract.MEMORY_CASES)
        return self

    def score(self, size: str) -> float:
        """Score of plan's slowest choice, over one case for each choice that matters, on "small" or "large" clusters."""
        return min(self.worth(self.choose(*self.draw(size, need))[1]) for need in self.cases[size])

    def draw(self, size: str, need: str) -> tuple[Transformer, Cluster]:
        """Draw a model and a cluster for which `need` matters most."""
        cases = self.cases[size][need]
        return build_case(cases[int(self.random.integers(len(cases)))], float(self.random.uniform(0.045, 0.055)))


def build_case(one: Case, overhead: float = 0.05) -> tuple[Transformer, Cluster]:
    """Build the model and the cluster of a case."""
    gpus, name, memory, slower, layers, heads, sequence, vocabulary, batch, gated, fused, dropout = one
    shape = dict(layers=layers, hidden=128 * heads, heads=heads, sequence=sequence, vocabulary=vocabulary, batch=batch)
    model = Transformer("a model", **shape, gated=bool(gated), fused=bool(fused), dropout=bool(dropout))
    device = replace(DEVICE_PRESETS[name], name=name.upper(), memory=memory * GIB)
    network = replace(device.network, bandwidth=device.network.bandwidth / slower)
    return model, Cluster(device, gpus, network=network, overhead=overhead)


def least_seconds(model: Transformer, cluster: Cluster) -> float:
    """Seconds of the best step, with micro-batches of any size."""
    sizes = [n for n in range(1, MAX_MICRO_BATCH + 1) if model.batch % n == 0]
    return best(model, cluster, 1, max_simulated=12, micro_batches=sizes)[0].seconds


def _to_plain(thing: object) -> object:
    """Convert a cluster to dicts of numbers and strings."""
    return {name: _to_plain(value) for name, value in vars(thing).items()} if hasattr(thing, "__dict__") else thing
