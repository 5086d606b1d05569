"""How part 29's `plan` is put to the test: models and clusters are drawn, and the best configuration of each is searched for here."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from course_lib import wording
from course_lib.check import Check
from course_lib.sim.hardware import GIB
from course_lib.sim.llm.closed import estimate
from course_lib.sim.llm.cluster import DEVICES, Cluster
from course_lib.sim.llm.configuration import Configuration, PlanError, problems
from course_lib.sim.llm.events import Step, simulate
from course_lib.sim.llm.transformer import Transformer
from course_lib.sim.plan.search import best, configurations

APART = 2.0  # times the best step that the slowest one takes in a drawn case, at least
GOOD, POOR = 1.05, 1.5  # times the best step: up to the first all points, from the second on none
# The part of all memory that a drawn model's state takes: in small clusters so much that one device cannot have it all.
LEAST, MOST, MANY = (0.3, 0.1), 0.6, 32


def planned(model, cluster):
    """On the rank: call plan. The course's own search cannot be imported meanwhile; while it is graded, a rank does not have it at all."""
    import sys

    from course_lib.sim.llm.configuration import Configuration
    from course_lib.sim.llm.transformer import Transformer

    room = "course_lib.sim.plan"
    before = {name: module for name, module in sys.modules.items() if name.startswith(room)}
    try:
        sys.modules.update(dict.fromkeys([room, *before]))
        found = plan(Transformer(**model), _cluster(cluster))
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(room):
            raise
        sentence = "the course's own search is not there while plan is tested: finding the configuration is the exercise."
        raise RuntimeError(sentence) from None
    finally:
        sys.modules.pop(room, None)
        sys.modules.update(before)
    return dict(vars(found)) if isinstance(found, Configuration) else type(found).__name__


def _cluster(plain):
    from course_lib.sim.hardware import Link
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
    show : bool
        Whether messages may contain expected values.
    """

    def __init__(self, ranks, *, show: bool = True):
        super().__init__("plan", show=show)
        self.ranks = ranks

    def choose(self, model: Transformer, cluster: Cluster, least: float | None = None) -> tuple[Step, float]:
        """What plan's choice takes, and how many times the best step (of `least` seconds, if that is known) it is.

        CheckFailed if it cannot be trained so.
        """
        self.case = f"{model.name} on {cluster.gpus} × {cluster.device.name.split()[0]} with {cluster.device.memory / GIB:.0f} GiB"
        answer = self.ranks.call(planned, dict(model=dict(vars(model)), cluster=_plain(cluster)), show=self.show)[0]
        if not isinstance(answer, dict):
            usual = "a missing return" if answer == "NoneType" else "its fields alone, or a step: that has a .configuration"
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
                least = best(model, cluster, 1, judged=12)[0].seconds
            except PlanError:  # the search has found nothing, and plan has
                least = step.seconds
        return step, step.seconds / min(step.seconds, least)

    @staticmethod
    def worth(times: float) -> float:
        """What a choice earns whose step takes so many times the best one's, from 0 to 1."""
        return min(max((POOR - times) / (POOR - GOOD), 0.0), 1.0)

    def score(self, count: int, gpus: tuple[int, ...]) -> float:
        """The mean of so many drawn cases on clusters of these sizes: from 0 to 1; CheckFailed where plan fails in one.

        Parameters
        ----------
        count : int
        gpus : tuple of int
            Sizes to draw from.
        """
        found = 0.0
        for _ in range(count):
            _, times = self.choose(*self.draw(gpus))
            found += self.worth(times)
        return found / count

    def draw(self, gpus: tuple[int, ...]) -> tuple[Transformer, Cluster, float]:
        """A model, a cluster on which it can be trained, and the seconds of the best step."""
        pick = self._pick
        while True:
            size, name = pick(gpus), pick(("a100", "h100"))
            heads = pick((16, 24, 32, 40, 48, 64, 80, 96, 128))
            model = Transformer(
                "a model",
                layers=pick((24, 32, 36, 40, 48, 60, 64, 80, 96)),
                hidden=128 * heads,
                heads=heads,
                sequence=pick((1024, 2048, 4096)),
                vocabulary=pick((32000, 51200, 128256)),
                batch=pick((128, 192, 256)) if size > MANY else pick((32, 48, 64)),
                gated=pick((False, True)),
                fused=pick((False, True)),
                dropout=pick((False, True)),
            )
            device, slower = replace(DEVICES[name], name=name.upper(), memory=pick((24, 40, 80)) * GIB), pick((1, 2, 4))
            cluster = Cluster(device, size, network=replace(device.network, bandwidth=device.network.bandwidth / slower), overhead=0.05)
            share = 18 * model.parameters() / size / device.memory  # of the memory, if nothing were there twice
            if not LEAST[size > MANY] <= share <= MOST:
                continue
            with contextlib.suppress(PlanError):
                least = best(model, cluster, 1, judged=12)[0].seconds
                # Else nearly any choice would do, or one that does not look at memory.
                if _slowest(model, cluster) > APART * least and _fastest(model, cluster) < least:
                    return model, cluster, least

    def _pick(self, choices: tuple) -> object:
        return choices[int(self.random.integers(len(choices)))]


def _slowest(model: Transformer, cluster: Cluster) -> float:
    """Seconds of the slowest step that fits, by closed forms, where replicas share the optimizer if there are any."""
    some = (c for c in configurations(model, cluster) if c.sharded_optimizer == (c.data > 1))
    found = (estimate(model, cluster, c) for c in some)
    return max((seconds for seconds, nbytes in found if nbytes < cluster.device.memory), default=0.0)


def _fastest(model: Transformer, cluster: Cluster) -> float:
    """Seconds of the step that is the fastest by closed forms, whether it fits or not."""
    some = (c for c in configurations(model, cluster) if c.sharded_optimizer == (c.data > 1))
    return simulate(model, cluster, min(some, key=lambda c: estimate(model, cluster, c)[0]), keep=False).seconds


def _plain(thing: object) -> object:
    """A cluster as dicts of numbers and texts."""
    return {name: _plain(value) for name, value in vars(thing).items()} if hasattr(thing, "__dict__") else thing
