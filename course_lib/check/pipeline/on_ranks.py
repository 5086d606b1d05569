"""Functions that the checks of part 25's schedules run on the ranks; see `pipeline.check`."""

from __future__ import annotations

import numpy as np

from course_lib import memory
from course_lib.collectives.progress import operations
from course_lib.engine import traffic_gates
from course_lib.engine.namespace import get_ipython, student
from course_lib.gpt.model.decoder import Sizes, layers
from course_lib.gpt.model.stage import Stage


def build_stage(sizes, values, place, meets, deep):
    """Make a stage with these parameters in this rank's group; see `concurrent_work` for `meets`.

    `deep`: release freed memory to the system at once.
    """
    everyone = student("everyone")

    class Gated(Stage):
        """Stage with gates: it works once enough has been sent, concurrently with some neighbours, whose numbers scale its input."""

        def forward(self, k, x, labels):
            return forward_scaled(self, k, x, labels, self.begin())

        def backward(self, k, grad):
            return super().backward(k, np.asarray(grad, self.dtype) * self.begin())

        def begin(self):
            number, theirs = np.array([traffic_gates.pass_gate()]), np.empty(1)
            others = [n - 1 - other for other in meets.pop(0)]
            self.told += [between.Isend(number, dest=other) for other in others]
            product = float(number[0])
            for other in others:
                between.Recv(theirs, source=other)
                product *= float(theirs[0])
            return self.dtype.type(product)

    comm, kinds = everyone.Split(color=place[0], key=place[1]), Stage if meets is None else Gated
    between = everyone.Split(color=place[0], key=-place[1])  # the same ranks as another communicator
    n, me = comm.Get_size(), comm.Get_rank()
    stage = kinds(layers(Sizes(*sizes), n, me, dtype=values[0].dtype), sizes[1], values[0].dtype)
    for (_, p), value in zip(stage.named_parameters(), values, strict=True):
        p.data = value.copy()
    stage.told = []
    get_ipython().user_ns["trial"] = stage, comm
    if deep:
        memory.release_freed_at_once(True)


def forward_scaled(stage, k, x, labels, number):
    """Take a micro-batch through a stage whose input is scaled by a number; on the first stage, that is the token embeddings.

    The result is not linear in the number, so the work cannot be done before the number is known.
    """
    if not stage.first:
        return Stage.forward(stage, k, x * number, labels)
    embed, *others = stage.layers
    stage.layers = [lambda tokens: embed(tokens) * number, *others]
    try:
        return Stage.forward(stage, k, x, labels)
    finally:
        stage.layers = [embed, *others]


def run_steps(function, batches, times, watched):
    """Take `times` steps on micro-batches that no rank has seen before.

    Returns what the steps returned, the gradients, the order of the work, the open requests, parameters, micro-batches, and, if
    `watched`, the peak of the bytes held.
    """
    trial = student("trial")
    stage, comm = trial
    before = operations.progress_state.open_requests
    if watched:
        with memory.watch() as held:
            losses = [student(function)(stage, list(batches), comm)]
    else:
        losses = [student(function)(stage, list(batches), comm) for _ in range(times)]
    left = operations.progress_state.open_requests - before - len(stage.told)
    for request in stage.told:
        request.Wait()
    parameters = [p for _, p in stage.named_parameters()]
    peak = held.true_peak if watched else 0
    return losses, [p.grad for p in parameters], stage.order(), left, [p.data for p in parameters], batches, peak


def end_measurement():
    """Keep freed memory for later arrays again."""
    memory.release_freed_at_once(False)
