"""The score of part 20: thresholds that an instructor edits here, and what the leaderboard gets to know."""

from __future__ import annotations

from course_lib import wording
from course_lib.check import CheckFailed
from course_lib.cluster.replies import RanksError
from course_lib.sim.core.hardware import GIB, LAYER
from course_lib.sim.schedule.check import ScheduleCheck
from course_lib.sim.schedule.simulation import Result

# By ranks, at least this model FLOPs utilisation: these points. Each begins above the loop that part 16 shows.
UTILISATION_POINTS = {
    32: ((0.80, 5), (0.775, 4), (0.75, 3), (0.725, 2), (0.70, 1)),
    64: ((0.80, 5), (0.70, 4), (0.60, 3), (0.55, 2), (0.50, 1)),
}
# At most these bytes on every rank: these points.
MEMORY_POINTS = ((60 * GIB, 5), (69 * GIB, 4), (80 * GIB, 3))
UTILISATION_SHARE, MEMORY_SHARE = 0.75, 0.25
# What the loop is graded on.
SETTINGS = (
    dict(world_size=32, num_layers=64, global_batch_size=2048, batch_size=64),
    dict(world_size=64, num_layers=32, global_batch_size=2048, batch_size=64),
)
BEST = 5.0
STATE_BYTES = 2 * LAYER.weight_bytes() + LAYER.optimizer_bytes()  # of a layer
SPARKLINE_BINS = 60  # of a sparkline
LEADERBOARD_MIME = "application/vnd.distributed-training-course.leaderboard+json"


def utilisation_points(utilisation: float, world_size: int) -> int:
    """Points for a model FLOPs utilisation on so many ranks.

    >>> [utilisation_points(u, 64) for u in (0.8, 0.7999, 0.5, 0.1)]
    [5, 4, 1, 0]
    """
    return next((points for least, points in UTILISATION_POINTS[world_size] if utilisation >= least), 0)


def memory_points(nbytes: float) -> int:
    """Points for the most bytes that a rank held.

    >>> [memory_points(gb * GIB) for gb in (60, 60.1, 75, 81)]
    [5, 4, 3, 0]
    """
    return next((points for most, points in MEMORY_POINTS if nbytes <= most), 0)


def score(result: Result) -> float:
    """0 to 5; nothing for memory alone, where the step is no faster than what was given."""
    fast = utilisation_points(result.utilisation, result.models[0].world_size)
    return UTILISATION_SHARE * fast + MEMORY_SHARE * memory_points(result.memory) if fast else 0.0


def sparkline(result: Result) -> dict[str, list[float]]:
    """For each of `SPARKLINE_BINS` equal spans of time, the part of the ranks that went forward and backward."""
    import numpy as np

    from course_lib.sim.schedule.stats import events

    edges = np.linspace(0, result.time, SPARKLINE_BINS + 1)
    share = {"forward": np.zeros(SPARKLINE_BINS), "backward": np.zeros(SPARKLINE_BINS)}
    for model in result.models:
        for event in events(model):
            kind = "forward" if event.kind == "recompute" else event.kind
            if kind in share:
                share[kind] += np.clip(np.minimum(edges[1:], event.end) - np.maximum(edges[:-1], event.start), 0, None)
    span = result.time / SPARKLINE_BINS * len(result.models)
    return {kind: [round(float(v), 3) for v in values / span] for kind, values in share.items()}


class LeaderboardEntry:
    """What the leaderboard gets to know of a loop; it shows itself in words, and carries its numbers along.

    Parameters
    ----------
    ranks : Ranks
        One rank, with the student's ``part4_training_loop`` and ``handle``: what to be called, of which 24 characters count.

    Attributes
    ----------
    data : dict or None
        None if the loop is not a training step on all settings.
    """

    def __init__(self, ranks):
        self.data, runs, check = None, [], ScheduleCheck("part4_training_loop", ranks)
        for settings in SETTINGS:
            try:
                result = check.run(**settings)
            except (CheckFailed, RanksError) as error:
                self.text = f"no entry: {str(error).splitlines()[0]}"
                return
            facts = dict(utilisation=result.utilisation, memory=result.memory, time=result.time, score=score(result))
            runs.append(dict(settings=settings, sparkline=sparkline(result), **facts))
        try:
            handle = ranks.pull("handle")[0]
        except RanksError:
            handle = None
        name = "".join(c for c in handle if c.isprintable()).strip()[:24] if isinstance(handle, str) else ""
        self.data = dict(handle=name or "anonymous", score=sum(r["score"] for r in runs) / len(runs), runs=runs)
        lines = [f"{self.data['handle']}: score {self.data['score']:.2f} of {BEST:g}"]
        for run in runs:
            place = f"{run['settings']['world_size']} ranks, {run['settings']['num_layers']} layers"
            cost = f"{wording.memory(run['memory'])}, {wording.seconds(run['time'])}"
            lines.append(f"  {place}: MFU {run['utilisation']:.1%}, {cost}, score {run['score']:.2f}")
        self.text = "\n".join(lines)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_) -> dict:
        return {"text/plain": self.text} | ({LEADERBOARD_MIME: self.data} if self.data else {})
