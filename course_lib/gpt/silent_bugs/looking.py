"""Functions with which part 33's notebook looks at the runs; the instruments are the student's."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

import numpy as np

from course_lib.gpt.silent_bugs import runs
from course_lib.gpt.silent_bugs.rounding import epsilon, rounded
from course_lib.gpt.silent_bugs.runs import RUNS
from course_lib.gpt.silent_bugs.step import Step, batch_of
from course_lib.mesh import RankMesh


def start(name: str, comm: object, **repairs: Callable) -> Step:
    """Set up a run, with some of its functions repaired; "one rank" is the right one. Collective."""
    return RUNS[name](RankMesh(comm, **RUNS[name].axes), **repairs) if name in RUNS else Step()


def source(name: str) -> str:
    """Source of one of the runs, or of a function of theirs."""
    return inspect.getsource(RUNS[name] if name in RUNS else getattr(runs, name))


def different_copies(step: Step, same_on: Callable) -> list[str]:
    """List the parameters that ranks should have in common and do not, with the axis; collective."""
    names, mesh = step.parameters, step.mesh
    return [
        f"{name} on {axis}"
        for name, p in names.items()
        for axis in mesh.shape
        if step.sharded.get(name, ("",))[0] != axis and not same_on(p.data, axis, mesh)
    ]


def report(name: str, comm: object, compare_with_one_rank: Callable, text: np.ndarray, **repairs: Callable) -> None:
    """Compare a run with one rank, and print on rank 0 what is found, and how long that takes; collective."""
    step, other, batches = start(name, comm, **repairs), start(name, comm, **repairs), [batch_of(text, i) for i in range(2)]
    began = time.perf_counter()
    other(batches[0], other.mesh)
    between = time.perf_counter()
    found = compare_with_one_rank(step, batches, step.mesh)
    now = time.perf_counter()
    if comm.Get_rank() == 0:
        print(f"run {name}: {found}; a step takes {1e3 * (between - began):.0f} ms, the comparison {1e3 * (now - between):.0f} ms")


def rounding_error(count: int, dtype: str, trials: int = 50) -> float:
    """Largest difference of sums of as many random terms, from first to last and back, in epsilons of the largest sum."""
    terms, sums = rounded(np.random.default_rng(0).standard_normal((count, trials)), dtype), []
    for order in (terms, terms[::-1]):
        total = np.zeros(trials)
        for term in order:
            total = rounded(total + term, dtype)
        sums.append(total.astype(float))
    return float(np.abs(sums[0] - sums[1]).max() / np.abs(sums[0]).max() / epsilon(dtype))
