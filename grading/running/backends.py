"""Backends for grading: this machine, or a cluster that the instructor already has. All are executors of `concurrent.futures`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import psutil

from course_lib.sandbox import cgroup
from grading.running import worker

CONNECT_TIMEOUT_SECONDS = 20  # seconds for a cluster to answer
EXTRA_RANK_BYTES = 128 << 20  # bytes for each rank beyond four
SUBMISSION_BYTES = 768 << 20  # bytes in which a hand-in of 4 ranks fits; tests/grading/running/test_cgroup.py holds that


class BackendError(Exception):
    """The engine is unknown or does not answer; the message says what is expected."""


@dataclass(frozen=True)
class Backend:
    """An executor that grades submissions.

    Attributes
    ----------
    executor : concurrent.futures.Executor
    workers : int
        Number of submissions graded at a time.
    description : str
        Description for the instructor.
    count : callable
        Returns the current number of workers.
    """

    executor: Executor
    workers: int
    description: str
    count: Callable[[], int] = lambda: 1


def parallel_submissions(ranks: int = 4) -> int:
    """Return the number of submissions with `ranks` ranks that fit on this machine at a time, by cores and (container's, job's) memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room = min(psutil.virtual_memory().available, cgroup.available_bytes())
    return max(1, min(cores, room // (SUBMISSION_BYTES + max(0, ranks - 4) * EXTRA_RANK_BYTES)))


@contextlib.contextmanager
def open_backend(engine: str = "", number: str = "", ranks: int = 4) -> Iterator[Backend]:
    """Open a backend, and close it in the end.

    Parameters
    ----------
    engine : str
        "" for this machine, ``dask:tcp://...`` for the scheduler of a Dask cluster, ``ipyparallel`` or ``ipyparallel:PROFILE`` for a
        running ipyparallel cluster.
    number : str
        Submissions at a time on this machine; "" for as many as fit.
    ranks : int
        Number of ranks of a submission.

    Raises
    ------
    BackendError
    """
    kind, _, address = engine.partition(":")
    if number and (not number.isdigit() or not int(number)):
        raise BackendError(f"JOBS={number}: expected a number of hand-ins to grade at a time, 1 or more.")
    if number and engine:
        raise BackendError(f"JOBS={number} is for this machine only; ENGINE={engine} grades as many hand-ins at a time as it has workers.")
    if not engine:
        with _here(int(number or parallel_submissions(ranks))) as found:
            yield found
    elif kind == "dask":
        with _dask(address) as found:
            yield found
    elif kind == "ipyparallel":
        with _ipyparallel(address) as found:
            yield found
    else:
        raise BackendError(f"ENGINE={engine}: expected dask:tcp://ADDRESS:PORT, ipyparallel or ipyparallel:PROFILE.")


@contextlib.contextmanager
def _here(number: int) -> Iterator[Backend]:
    executor = ThreadPoolExecutor(number)
    worker.begin()
    try:
        yield Backend(executor, number, f"{number} at a time on this machine")
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        worker.end_all()
        executor.shutdown()


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Backend]:
    try:
        from distributed import Client
    except ImportError:
        raise BackendError("Dask is not installed here: .venv/bin/python -m pip install distributed") from None
    try:
        client = Client(address, timeout=CONNECT_TIMEOUT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise BackendError(f"No Dask scheduler answers at {address or 'that address'}: {str(error)[:200]}") from error
    try:
        number = sum(client.nthreads().values())
        if not number:
            raise BackendError(f"The Dask cluster at {address} has no workers yet. Start some, and try again.")
        description = f"{number} at a time on the Dask cluster at {address}"
        yield Backend(client.get_executor(pure=False), number, description, lambda: _workers(client))
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=5)


def _workers(client) -> int:
    """Return the current number of workers of a Dask cluster; 0 if its scheduler is gone."""
    try:
        return len(client.nthreads())
    except Exception:  # of many kinds: a closed connection, and the client's own errors
        return 0


@contextlib.contextmanager
def _ipyparallel(profile: str) -> Iterator[Backend]:
    import ipyparallel

    try:
        client = ipyparallel.Client(profile=profile or "default", timeout=CONNECT_TIMEOUT_SECONDS)
    except (OSError, TimeoutError, ipyparallel.error.TimeoutError) as error:
        raise BackendError(f"No ipyparallel cluster is running with profile {profile or 'default'}: {str(error)[:200]}") from error
    try:
        number = len(client.ids)
        if not number:
            raise BackendError("The ipyparallel cluster has no engines yet. Start some, and try again.")
        yield Backend(client.load_balanced_view().executor, number, f"{number} at a time on ipyparallel's engines", lambda: len(client.ids))
    finally:
        with contextlib.suppress(Exception):
            client.abort(block=False)  # nobody would receive the pending results
        client.close()
