"""Score of part 20: thresholds that an instructor may edit, and the entry of the leaderboard."""

from __future__ import annotations

from course_lib.check import CheckFailed
from course_lib.cluster.replies import RanksError
from course_lib.sim.core.hardware import GIB, LAYER
from course_lib.sim.schedule.check import ScheduleCheck
from course_lib.sim.schedule.simulation import Result
from course_lib.utils import wording

# For each number of ranks: points for at least this model FLOPs utilisation. All exceed the loop shown in part 16.
UTILISATION_POINTS = {
    32: ((0.80, 5), (0.775, 4), (0.75, 3), (0.725, 2), (0.70, 1)),
    64: ((0.80, 5), (0.70, 4), (0.60, 3), (0.55, 2), (0.50, 1)),
}
# Points for at most this many bytes on every rank.
MEMORY_POINTS = ((60 * GIB, 5), (69 * GIB, 4), (80 * GIB, 3))
UTILISATION_SHARE, MEMORY_SHARE = 0.75, 0.25
# Settings on which the loop is graded.
SETTINGS = (
    dict(world_size=32, num_layers=64, global_batch_size=2048, batch_size=64),
    dict(world_size=64, num_layers=32, global_batch_size=2048, batch_size=64),
)
BEST = 5.0
STATE_BYTES = 2 * LAYER.weight_bytes() + LAYER.optimizer_bytes()  # of a layer
SPARKLINE_BINS = 60  # number of bins
LEADERBOARD_MIME = "application/vnd.distributed-training-course.leaderboard+json"


def utilisation_points(utilisation: float, world_size: int) -> int:
    """Points for a model FLOPs utilisation on this number of ranks.

    >>> [utilisation_points(u, 64) for u in (0.8, 0.7999, 0.5, 0.1)]
    [5, 4, 1, 0]
    """
    return next((points for least, points in UTILISATION_POINTS[world_size] if utilisation >= least), 0)


def memory_points(nbytes: float) -> int:
    """Points for the peak bytes of a rank.

    >>> [memory_points(gb * GIB) for gb in (60, 60.1, 75, 81)]
    [5, 4, 3, 0]
    """
    return next((points for most, points in MEMORY_POINTS if nbytes <= most), 0)


def score(result: Result) -> float:
    """Score from 0 to 5; memory alone earns nothing if the step is no faster than the given loop's."""
    fast = utilisation_points(result.utilisation, result.models[0].world_size)
    return UTILISATION_SHARE * fast + MEMORY_SHARE * memory_points(result.memory) if fast else 0.0


def sparkline(result: Result) -> dict[str, list[float]]:
    """Fraction of the ranks going forward and backward, in each of `SPARKLINE_BINS` equal spans of time."""
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
    """Entry of a loop in the leaderboard, displayed in words, with its numbers attached.

    Parameters
    ----------
    ranks : Ranks
        One rank, with the student's ``part4_training_loop`` and ``handle``, the displayed name, of which 24 characters are used.

    Attributes
    ----------
    data : dict or None
        None if the loop is not a valid training step in all settings.
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
