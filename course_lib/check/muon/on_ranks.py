"""Functions that the checks of part 36 run on the ranks; see `muon.step`, `muon.iteration` and `muon.owners`."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
from mpi4py import MPI

from course_lib import memory
from course_lib.autograd import Parameter
from course_lib.engine import traffic_gates
from course_lib.engine.namespace import get_ipython, group_of, student
from course_lib.mesh import RankMesh


def iterate(matrices, steps, watched):
    """Call the student's `newton_schulz`: the results, the arguments afterwards, and the peak memory."""
    with memory.watch() if watched else nullcontext() as account:
        found = [student("newton_schulz")(matrix, n) for matrix, n in zip(matrices, steps, strict=True)]
    return found, matrices, account.true_peak if watched else 0


def call_owners(cases):
    """Call the student's `owners` on lists of shapes, each with a number of ranks; return the lists after the calls, too."""
    given = [[tuple(shape) for shape in shapes] for shapes, _ in cases]
    return [student("owners")(shapes, n) for shapes, (_, n) in zip(given, cases, strict=True)], given


def mix(x, number):
    """Stand-in for an orthogonalisation: exact for small numbers, and no part of its result comes from a part of x alone."""
    return number * (x[::-1, ::-1] + np.abs(x).max())


def build_optimizer(number, place, grid, weights, axes, others, owner, settings, shapes, at_once):
    """Make the student's optimizer on this rank's group, a grid of dp times tp ranks.

    There may be several, each with a number. The orthogonalisation passes a gate. With `at_once`,
    the owners meet in the first one of each step: the product of their gates' numbers scales all
    results of the step, so nobody can do without.
    """
    comm = group_of(place)
    mesh = RankMesh(comm, dp=grid[0], tp=grid[1])
    meeting = comm.Split(color=int(mesh.rank in owner), key=mesh.rank)
    calls: list = []
    product = np.ones(1)

    def orthogonalize(matrix):
        if np.shape(matrix) not in shapes:
            raise ValueError(f"orthogonalize got an array of shape {np.shape(matrix)}, which is no whole matrix here.")
        scale = traffic_gates.pass_gate()
        if at_once and not calls:
            meeting.Allreduce(np.array([scale]), product, op=MPI.PROD)
        calls.append(None)
        return mix(matrix, scale * float(product[0]))

    matrices = [(Parameter(w.copy()), axis) for w, axis in zip(weights, axes, strict=True)]
    rest = [Parameter(x.copy()) for x in others]
    shapes = [tuple(shape) for shape in shapes]
    optimizer = student("ShardedMuon")(matrices, rest, mesh, owner=list(owner), orthogonalize=orthogonalize, **settings)
    trials = get_ipython().user_ns.setdefault("trials", {})
    trials[number] = optimizer, [p for p, _ in matrices], rest, calls


def take_step(number, grads, rest_grads):
    """Take a step with these gradients; return all parameters.

    The caller overwrites the gradients of matrices after the step, as one with buffers does.
    """
    optimizer, params, rest, calls = student("trials")[number]
    calls.clear()
    for p, grad in zip([*params, *rest], [*grads, *rest_grads], strict=True):
        p.grad = grad
    optimizer.step()
    for p in [*params, *rest]:
        p.grad = None
    for grad in grads:
        grad[...] = 77
    return [p.data for p in params], [p.data for p in rest]


def take_large_step(seed, shapes):
    """Take a step with drawn gradients of these shapes, and drop them; return a number of each parameter."""
    random = np.random.default_rng(seed)
    grads = [random.integers(-2, 3, shape).astype(np.float32) for shape in shapes]
    return [float(data[0, 0]) for data in take_step(0, grads, [np.ones(4, np.float32)])[0]]


def release_memory(at_once):
    """Return freed memory to the system at once, or no longer, and forget the optimizer."""
    get_ipython().user_ns.pop("trials", None)
    memory.release_freed_at_once(at_once)
