"""Start ranks and wait until all of them are ready; every wait has a time limit."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from course_lib.cluster import requests
from course_lib.cluster.connection import ClusterConnection, RanksGone
from course_lib.cluster.isolated.ranks import IsolatedRanks
from course_lib.cluster.panel.source import DescriptorListener, FileSource, HostSource
from course_lib.cluster.processes import launch, rank_quota
from course_lib.cluster.processes.host_heartbeat import HostHeartbeat
from course_lib.cluster.processes.launch import Processes
from course_lib.cluster.processes.slurm import JOB_START_SECONDS as SLURM_LIMIT
from course_lib.cluster.processes.slurm import allocate
from course_lib.engine import serialization
from course_lib.engine.processes.mpiexec import StartError
from course_lib.sandbox import bubblewrap

if TYPE_CHECKING:
    from course_lib.cluster.client import Client

FIRST_TRY_SECONDS, START_SECONDS = 30.0, 60.0  # seconds to start


def start_ranks(n: int, client: Client | None = None, slurm: str | None = None) -> ClusterConnection:
    """Start `n` ranks, in up to two attempts: the first may collide with leftovers of another program.

    Parameters
    ----------
    n : int
        Number of ranks.
    client : Client, optional
        Client of running engines; by default, new ones are started.
    slurm : str, optional
        Options of srun, to ask Slurm for machines; by default, the ranks run on this one.

    Returns
    -------
    ClusterConnection

    Raises
    ------
    StartError
        The ranks ended, or were not ready in time; the message has the last lines of their log.
    """
    if client is None and slurm is None and bubblewrap.ISOLATION_VARIABLE not in os.environ:
        rank_quota.check_quota(n)
    threadpool_limits(1)  # for checks in this process: threads that compete with the ranks for cores make them five times slower
    for limit in (START_SECONDS,) if client is not None or slurm is not None else (FIRST_TRY_SECONDS, START_SECONDS):
        try:
            return _try(n, client, SLURM_LIMIT if slurm is not None else limit, slurm)
        except StartError:
            if limit == START_SECONDS:
                raise


def _try(n: int, client: Client | None, limit: float, slurm: str | None) -> ClusterConnection:
    deadline = time.monotonic() + limit
    if client is not None:
        _wait_for_engines(client, n, deadline)
        connection = ClusterConnection(n, client)
    else:
        connection = _start(n, limit, deadline, slurm)
    try:
        _greet(connection, limit)
    except BaseException:  # an interrupt, too
        connection.end()
        raise
    return connection


def _start(n: int, limit: float, deadline: float, slurm: str | None) -> ClusterConnection:
    """Start `n` ranks and wait for them; leaves nothing behind on failure."""
    if os.environ.get(bubblewrap.ISOLATION_VARIABLE):
        return _start_isolated(n, deadline)
    processes, client = launch.launch(n) if slurm is None else allocate(n, slurm), None
    from course_lib.cluster.client import connect  # takes a while to import, and isolated ranks do not need it

    try:
        while waits := processes.waits():  # waiting in Slurm's queue has no time limit
            processes.show(waits)
            deadline = time.monotonic() + limit
            _pause("the ranks did not come up", deadline, processes)
        while not processes.client_file.exists():
            _pause("the controller did not come up", deadline, processes)
        try:
            client = connect(str(processes.client_file), limit)
        except TimeoutError:
            raise StartError(f"the controller did not answer within {limit:g} s.\n{processes.log()}") from None
        _wait_for_engines(client, n, deadline, processes)
    except BaseException:
        processes.stop()
        if client is not None:
            client.close(linger=0)
        raise
    processes.forget_keys()
    return ClusterConnection(n, client, processes)


def _start_isolated(n: int, deadline: float) -> ClusterConnection:
    ranks = IsolatedRanks(n)
    try:
        _wait_for_engines(ranks, n, deadline, ranks)
    except BaseException:
        ranks.stop()
        raise
    return ClusterConnection(n, ranks, ranks)


def _wait_for_engines(client: Client, n: int, deadline: float, processes: Processes | None = None) -> None:
    while len(client.ids) < n:
        _pause(f"only {len(client.ids)} of {n} ranks came up", deadline, processes)


def _greet(connection: ClusterConnection, limit: float) -> None:
    """Ask the ranks for their machines; StartError unless they are the ranks of one MPI job, in order."""
    hello = {"do": "hello", "folder": os.getcwd(), "path": [p for p in sys.path if p]}
    engines = sorted(connection.client.ids)[: connection.n]
    try:
        with DescriptorListener() as listener:
            replies = requests.ask(connection, {engine: {**hello, "board": listener.path} for engine in engines}, limit)
            if (descriptor := listener.descriptor()) is not None:
                connection.source = FileSource(connection.n, descriptor)
    except RanksGone as gone:
        raise StartError(f"{gone}\n{connection.log()}") from None
    for engine, reply in replies.items():
        if reply and reply["error"] and reply["error"]["name"] == "TimeLimit":
            raise StartError(f"rank {engine} did not answer within {limit:g} s.\n{connection.log()}")
        if reply is None or reply["error"]:
            said = reply["error"]["message"] if reply else "no reply"
            raise StartError(f"rank {engine} cannot take part: {said}\n{connection.log()}")
    facts = {engine: serialization.decode(reply["value"]) for engine, reply in replies.items()}
    if {f["size"] for f in facts.values()} != {len(facts)} or any(engine != f["rank"] for engine, f in facts.items()):
        raise StartError(
            f"expected {len(facts)} engines of one MPI job, in rank order; got sizes "
            f"{sorted({f['size'] for f in facts.values()})} and ranks {[f['rank'] for f in facts.values()]}. "
            "Were the engines started by this MPI's own mpiexec?"
        )
    connection.hosts = [f["host"] for f in facts.values()]
    places = {f["host"]: f["agent"] for f in facts.values() if "agent" in f}
    if places:
        connection.source = HostSource(connection.hosts, places)
    try:
        connection.heartbeat = HostHeartbeat(places) if places else None
    except StartError as error:
        if connection.processes:
            raise
        print(error, flush=True)  # attached engines may be reachable only through a tunnel, on purpose


def _pause(problem: str, deadline: float, processes: Processes | None) -> None:
    ended = processes.ended() if processes else None
    if ended:
        raise StartError(f"{problem}: {ended}\n{processes.advice}")
    if time.monotonic() > deadline:
        raise StartError(f"{problem} in time. {processes.missing()}\n{processes.log()}" if processes else f"{problem} in time.")
    time.sleep(0.02)
