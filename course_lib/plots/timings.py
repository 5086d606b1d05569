"""Time of a training step, recorded on the ranks and drawn.

All times are seconds of the machine's own clock, which its processes share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from course_lib.autograd import Module, Tensor, cross_entropy
from course_lib.plots.figures import INK, Picture, color, new_figure, slide_width

EXCHANGE_COLOR = "#444444"


class Recorder:
    """Communicator that also records when its all-reduces begin and end, and how long the rank waits for them.

    Attributes
    ----------
    exchanges, stalls : list of (float, float)
        Begin and end.
    blocking : bool
        Whether `Iallreduce` waits at once, as `Allreduce` does; to see what is gained by not waiting.
    open : list of RecordedRequest
        The requests that are not complete.
    """

    def __init__(self, comm):
        self._comm, self.exchanges, self.stalls, self.blocking = comm, [], [], False
        self.open: list[RecordedRequest] = []

    def __getattr__(self, name: str):
        return getattr(self._comm, name)

    def Allreduce(self, *arguments) -> None:
        """Call the communicator's `Allreduce`, and record it."""
        began = time.perf_counter()
        self._comm.Allreduce(*arguments)
        self.exchanges.append((began, time.perf_counter()))
        self.stalls.append(self.exchanges[-1])

    def Iallreduce(self, *arguments) -> RecordedRequest:
        """Call the communicator's `Iallreduce`, and record it."""
        began = time.perf_counter()
        request = RecordedRequest(self, self._comm.Iallreduce(*arguments), began)
        self.stalls.append((began, time.perf_counter()))
        self.open.append(request)
        if self.blocking:
            request.Wait()
        return request

    def test(self) -> None:
        """Call `Test` on all requests that are not complete: in MPI's calls, data moves."""
        for request in list(self.open):
            request.Test()

    def averaged(self, *arguments) -> RecordedAverage:
        """Call the communicator's `averaged`, and record its use."""
        return RecordedAverage(self, self._comm.averaged(*arguments))


class RecordedAverage:
    """Recorded counterpart of an array that is averaged."""

    def __init__(self, recorder: Recorder, inner):
        self._recorder, self._inner, self.array = recorder, inner, inner.array

    def start(self) -> None:
        """Start averaging."""
        self._began = time.perf_counter()
        self._inner.start()
        self._recorder.stalls.append((self._began, time.perf_counter()))

    def wait(self) -> None:
        """Wait for the average."""
        waits = time.perf_counter()
        self._inner.wait()
        ended = time.perf_counter()
        self._recorder.stalls.append((waits, ended))
        self._recorder.exchanges.append((self._began, ended))


class RecordedRequest:
    """Request that records its end."""

    def __init__(self, recorder: Recorder, request, began: float):
        self._recorder, self._request, self._began, self._ended = recorder, request, began, False

    def Wait(self) -> None:
        """Wait until the transfer has ended."""
        if self._ended:
            return
        waits = time.perf_counter()
        self._request.Wait()
        self._recorder.stalls.append((waits, time.perf_counter()))
        self._end()

    def Test(self) -> bool:
        """Return whether the transfer has ended, and advance it."""
        if not self._ended and self._request.Test():
            self._end()
        return self._ended

    def _end(self) -> None:
        self._ended = True
        self._recorder.open.remove(self)
        self._recorder.exchanges.append((self._began, time.perf_counter()))


class GradientTimer(Module):
    """Identity that records when the gradient passes, and then takes as long as a device would that computes what comes next.

    Parameters
    ----------
    times : list of float
        Where the times are recorded.
    seconds : float
        How long the device computes.
    meanwhile : callable, optional
        What this process does in that time, again and again; it sleeps by default.
    """

    def __init__(self, times: list[float], seconds: float = 0.0, meanwhile: Callable[[], None] | None = None):
        self.times, self.seconds, self.meanwhile = times, seconds, meanwhile

    def forward(self, x: Tensor) -> Tensor:
        def backward(grad):
            self.times.append(time.perf_counter())
            until = self.times[-1] + self.seconds
            while (left := until - time.perf_counter()) > 0:
                self.meanwhile() if self.meanwhile else time.sleep(left)
            return (grad,)

        return Tensor.from_operation(x.data, (x,), backward)


def median_step(model: Module, marks: list[float], x, y, recorder: Recorder, turns: int = 9) -> dict:
    """Take some steps, forward and backward, on all ranks at once, and return the one of median duration.

    Returns
    -------
    dict
        "forward" and "end", and the lists "marks", "exchanges" and "stalls"; in seconds from the beginning of the step.
    """
    steps = []
    for _ in range(turns):
        for p in model.parameters():
            p.grad = None
        for notes in (marks, recorder.exchanges, recorder.stalls):
            notes.clear()
        recorder.Barrier()
        began = time.perf_counter()
        loss = cross_entropy(model(x), y)
        forward = time.perf_counter()
        loss.backward()
        step = {"forward": forward - began, "end": time.perf_counter() - began, "marks": [t - began for t in marks]}
        step |= {name: [(a - began, b - began) for a, b in getattr(recorder, name)] for name in ("exchanges", "stalls")}
        steps.append(step)
    return sorted(steps[1:], key=lambda step: step["end"])[(turns - 1) // 2]


def _lanes(spans: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Distribute intervals over lanes so that those of one lane do not overlap."""
    lanes: list[list[tuple[float, float]]] = []
    for span in sorted(spans):
        lane = next((lane for lane in lanes if lane[-1][1] <= span[0]), None)
        if lane is None:
            lanes.append([span])
        else:
            lane.append(span)
    return lanes


def draw(ways: dict[str, Sequence[dict]], title: str) -> Picture:
    """Draw a step of each variant, on each rank: computation above, exchanges below; those in flight at the same time one below the other.

    Parameters
    ----------
    ways : dict of str to sequence of dict
        For each variant, one step per rank, as returned by `median_step`.
    """
    rows = [(name, r, step) for name, steps in ways.items() for r, step in enumerate(steps)]
    height = 1.2 + 0.62 * len(rows)
    figure, (axes,) = new_figure(slide_width(8.6, height), height, title)
    for i, (_, r, step) in enumerate(rows):
        axes.broken_barh([(0, 1e3 * step["forward"])], (i - 0.4, 0.4), facecolor=color(r), alpha=0.45)
        axes.broken_barh([(1e3 * step["forward"], 1e3 * (step["end"] - step["forward"]))], (i - 0.4, 0.4), facecolor=color(r))
        axes.broken_barh([(1e3 * a, 1e3 * (b - a)) for a, b in step["stalls"]], (i - 0.4, 0.4), facecolor="white", edgecolor=color(r))
        axes.vlines([1e3 * t for t in step["marks"]], i - 0.4, i, color="white", linewidth=1)
        lanes = _lanes(step["exchanges"])
        for lane, spans in enumerate(lanes):
            place = i + 0.03 + 0.32 * lane / len(lanes), 0.3 / len(lanes)
            axes.broken_barh(
                [(1e3 * a, 1e3 * (b - a)) for a, b in spans], place, facecolor=EXCHANGE_COLOR, edgecolor="white", linewidth=0.5
            )
    axes.set_yticks(range(len(rows)), [f"{name}\nrank {r}" if r == 0 else f"rank {r}" for name, r, _ in rows], fontsize=9)
    axes.set(xlabel="ms", ylim=(len(rows) - 0.3, -0.6), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    legend = [(color(0), 0.45, "forward"), (color(0), 1, "backward; a line between two layers"), (EXCHANGE_COLOR, 1, "exchange in flight")]
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=c, alpha=a, label=text) for c, a, text in legend]
    patches.append(Patch(facecolor="white", edgecolor=color(0), label="the rank is in an MPI call"))
    axes.legend(handles=patches, fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, labelcolor=INK)
    said = "; ".join(
        f"{name}: {max(s['end'] for s in steps) * 1e3:.1f} ms, {len(steps[0]['exchanges'])} exchanges" for name, steps in ways.items()
    )
    return Picture(figure, f"{title}: {said}")
