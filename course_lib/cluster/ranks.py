"""`Ranks`: the running ranks as the notebook's kernel uses them: run cells, call functions, interrupt, restart, stop."""

from __future__ import annotations

import atexit
import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib import memory
from course_lib.cluster import idle_shutdown, replies, requests, startup, time_limits
from course_lib.cluster.connection import STOPPED_MESSAGE, ClusterConnection, RanksGone
from course_lib.cluster.panel.panel import Panel
from course_lib.cluster.panel.status import Absence
from course_lib.cluster.processes import rank_quota
from course_lib.cluster.source import misplaced_names
from course_lib.cluster.source import rerun as cells
from course_lib.cluster.source.cell import below_magics
from course_lib.cluster.source.ship_function import pack
from course_lib.engine import serialization
from course_lib.plots.figures import on_slides
from course_lib.sandbox import bubblewrap
from course_lib.trace import perfetto
from course_lib.trace.recorder import CAPACITY
from course_lib.trace.timeline import Trace
from course_lib.utils import wording

if TYPE_CHECKING:
    from course_lib.cluster.client import Client
    from course_lib.cluster.isolated.ranks import IsolatedRanks

Gates = list[tuple[float, float]] | list[list[tuple[float, float]]] | None


class Ranks:
    """The running ranks.

    Parameters
    ----------
    n : int
        Number of ranks.
    client : Client, optional
        Client of running engines; by default, new ones are started.
    slurm : str, optional
        Options of srun, to run the ranks in a Slurm allocation.

    Attributes
    ----------
    hosts : list of str
        The machine of each rank.
    traffic : list of list of tuple
        By rank, the traffic in the last `call`: operation, ranks, calls, payload in bytes.
    arrays : list of (list of numpy.ndarray, or None)
        By rank, the arrays that it sent in the last `call`, flat; None unless ranks are isolated and ``keep=True``.
    messages : list of (list of (str, int, int), or None)
        By rank, its messages in the last `call`, in order: "to" or "from", the other rank, size in bytes; of a collective its name, -1 and
        0. None unless ranks are isolated.
    unended : list of int
        By rank, the messages and collectives that it had started but not completed when it replied; 0 unless ranks are isolated.
    peaks : list of (int or None)
        By rank, its peak memory in the last `call` in bytes, beyond what it held before; None unless measured, see `call`.
    idle_stop_seconds : float or None
        If they were stopped for being idle: after how many seconds.
    """

    def __init__(self, n: int, client: Client | None = None, slurm: str | None = None):
        self.n, self.attached, self.slurm, self.hosts = n, None, slurm, []
        self._ran: list[cells.ExecutedCell] = []
        self._connection: ClusterConnection | None = None
        self._replay_log = time_limits.ReplayLog()
        self._round, self._epoch, self._stopped, self.idle_stop_seconds = 0, 0, False, None
        self._panel: Panel | None = None
        self._starting = False
        self._traces: list[tuple[dict[int, dict], list[str]]] | None = None  # replies to each request and hosts, while traces are recorded
        began = time.monotonic()
        self._come_up(client)
        self.seconds = time.monotonic() - began

    def __repr__(self) -> str:
        if not self.alive():
            return f"{self.n} ranks, {'stopped while idle' if self.idle_stop_seconds else 'stopped'}"
        where = "this machine" if len(set(self.hosts)) == 1 else f"{len(set(self.hosts))} machines"
        return f"{self.n} ranks on {where}, up in {self.seconds:.1f} s"

    def _come_up(self, client: Client | None = None) -> None:
        self._stopped, self._starting = False, True
        self._silences: dict[int, list[tuple[int, float]]] = {}  # by rank: for the next cell or call
        try:
            if self._panel or on_slides():
                self.panel().resume()
            self._connection = startup.start_ranks(self.n, client, self.slurm)
        finally:
            self._starting = False
        self.idle_stop_seconds = None
        self.hosts = self._connection.hosts
        atexit.register(self.stop)

    def alive(self) -> bool:
        """Return whether the ranks can run a cell."""
        return self._connection is not None and self._connection.alive()

    def stop(self) -> None:
        """End all processes of this cluster; attached engines keep running."""
        self._stopped, self.idle_stop_seconds = True, None
        self._end()

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.end()
        atexit.unregister(self.stop)

    def restart(self, rerun: bool = False, n: int | None = None) -> None:
        """End the ranks and start new ones, with empty namespaces.

        Parameters
        ----------
        rerun : bool
            Whether to run the cells again that only defined functions, classes and variables.
        n : int, optional
            The new number of ranks; by default the same.
        """
        n = self.n if n is None else rank_quota.check_count(n)
        before, self.n = self.n, n if self.slurm is not None else rank_quota.check_quota(n)
        try:
            self._starting = True
            self._end()
            self._come_up()
        except BaseException:
            self.n, self._starting = before, False
            raise
        if rerun:
            again, left_out = cells.select_cells(self._ran)
            print(cells.summary(again, left_out), flush=True)
            traces, self._traces = self._traces, None
            try:
                for cell in again:
                    replies.raise_errors(self.run(cell.source, targets=cell.on(self.n, before), label=cell.label))
            finally:
                self._traces = traces

    def panel(self) -> Panel:
        """Return a live panel of what each rank does, to be shown below a cell; it stays up to date also while a cell runs.

        Returns
        -------
        Panel
        """
        if self._panel is None:
            self._panel = Panel(self)
        return self._panel

    @property
    def connection(self) -> ClusterConnection | None:
        """The connection to the ranks; None while they are not up."""
        return self._connection

    @property
    def absence(self) -> Absence:
        """The reason why there is no connection."""
        if self._starting:
            return Absence.STARTING
        return Absence.IDLE if self.idle_stop_seconds else Absence.STOPPED if self._stopped else Absence.GONE

    # Running code.

    @property
    def share_a_disk(self) -> bool:
        """True if a rank can read another rank's files; isolated ranks cannot."""
        return bubblewrap.ISOLATION_VARIABLE not in os.environ

    @property
    def rounds(self) -> int:
        """The number of requests so far."""
        return self._round

    @property
    def isolated(self) -> IsolatedRanks | None:
        """The isolated ranks; None if ranks are not isolated."""
        return self._connection.client if self._connection and bubblewrap.ISOLATION_VARIABLE in os.environ else None

    @property
    def cells(self) -> list[str]:
        """The code of the cells that ranks ran without an error, see `saving`."""
        return [below_magics(cell.source) for cell in self._ran]

    def run(
        self,
        source: str,
        *,
        targets: list[int] | None = None,
        label: str = "cell",
        limit: float | None = None,
        show: requests.Show | None = None,
    ) -> replies.Replies:
        """Run source code on the ranks; blocks until they are done.

        Parameters
        ----------
        source : str
            Source code, as in a notebook cell.
        targets : list of int, optional
            The ranks; all by default.
        label : str
            The code's name in error messages, such as "cell [5]".
        limit : float, optional
            Seconds after which the ranks are interrupted.
        show : callable, optional
            Called with the ranks' output while they run: a list of (rank, text).

        Returns
        -------
        list of (int, dict)
            Each rank, and its reply ("outputs", "error").

        Raises
        ------
        RanksGone
            A rank's process ended.
        """
        what = {r: {"do": "cell", "source": source, "label": label} for r in self._targets(targets)}
        found = self._do(what, limit, show)
        if not any(reply["error"] for reply in found.values()):
            self._ran.append(cells.ExecutedCell(source, tuple(what), label))
        self._replay_log.add(what, found)
        return list(found.items())

    def call(
        self,
        function,
        arguments: list[dict] | dict | None = None,
        *,
        limit: float = 60.0,
        show: bool = False,
        gates: Gates = None,
        keep: bool = False,
        peak: bool | float | str = False,
    ) -> list:
        """Call a function on every rank, and return the results.

        Parameters
        ----------
        function : str or function
            The name of a function that a ``%%px`` cell has defined on the ranks; or a function of this notebook, whose source is sent to
            the ranks. Names in it that this notebook does not define are looked up on the rank.
        arguments : dict, or list of dict
            Keyword arguments: the same for all ranks, or a dict for each.
        limit : float
            Seconds after which the ranks are interrupted.
        show : bool
            Whether to show the ranks' output.
        gates : list of (float, float), or a list of these for each rank, optional
            For `engine.traffic_gates`: the bytes that a rank must have sent to pass each gate, and the number that it then receives.
        keep : bool
            Whether to keep the arrays that each rank sends in `arrays`; only if ranks are isolated.
        peak : bool, float or "goes on"
            Whether to measure `peaks`, if ranks are isolated. True: in this call. A number: the same, but memory that a rank held before
            counts, too, apart from this number of bytes. "goes on": since the start of the last call that was measured.

        Returns
        -------
        list
            The value from each rank: numbers, strings, arrays, and tuples, lists and dicts of these. Any other
            object stays on the rank, and is represented by a `serialization.Opaque`.

        Raises
        ------
        replies.RanksError
            The function raised on some rank.
        RanksGone
            A rank's process ended.
        """
        named = isinstance(function, str)
        what = {"do": "call"} | (
            {"function": function, "source": None} if named else pack(function, bubblewrap.ISOLATION_VARIABLE in os.environ)
        )
        each = arguments if isinstance(arguments, list) else [arguments or {}] * self.n
        if bubblewrap.ISOLATION_VARIABLE not in os.environ:
            texts = [value for value in each[0].values() if isinstance(value, str)] if each else []
            misplaced_names.check({*re.findall(r"\w+", what["source"] or ""), what["function"], *texts})
        if len(each) != self.n:
            raise ValueError(
                f"got arguments for {len(each)} ranks, but {self.n} are up: ranks.restart(rerun=True, n={len(each)}) starts that many."
            )
        client = self._looking(peak)
        gates = gates if gates and isinstance(gates[0], list) else [gates or []] * self.n
        found = self._do({r: {**what, "arguments": each[r], "gates": gates[r], "keep": keep} for r in range(self.n)}, limit)
        self.peaks = client.peaks() if client else [None] * self.n
        if show:
            replies.show_outputs(list(found.items()), self.n)
        replies.raise_errors(list(found.items()))
        self.arrays = [reply.get("arrays") for reply in found.values()]
        self.messages = [reply.get("messages") for reply in found.values()]
        self.unended = [reply.get("unended", 0) for reply in found.values()]
        self.traffic = [[tuple(e) for e in reply.get("traffic", [])] for reply in found.values()]
        return [serialization.decode(reply["value"], reply.get("rest", b"")) for reply in found.values()]

    def pull(self, name: str) -> list:
        """Return a variable's value on each rank, as plain data (see `call`)."""
        return self.call(_look_up, {"name": name})

    def held(self) -> list[int]:
        """Return the bytes that each rank holds: measured by the system if ranks are isolated, else the sum of its live arrays."""
        self._tidy()
        client = self._connection.client
        return client.held() if hasattr(client, "held") else self.call(memory.live_array_bytes)

    def _tidy(self) -> None:
        self._do({r: {"do": "tidy"} for r in range(self.n)}, 30.0)

    def _looking(self, peak: bool | float | str) -> Client | None:
        """Prepare the measurement of peak memory; return the client that measures it, None if it is not measured."""
        if anew := peak not in (False, "goes on"):
            self._tidy()
        client = getattr(self._connection, "client", None)
        if not hasattr(client, "peaks"):
            return None
        if anew:
            client.reset_peak(math.inf if peak is True else peak)
        return client if peak else client.stop_sampling()

    def interrupt(self) -> None:
        """Interrupt the ranks, as Ctrl-C would."""
        if self._connection is not None:
            self._connection.client.interrupt(list(range(self.n)))

    def silence(self, rank: int, seconds: float, after: int = 0) -> None:
        """Have a rank fall silent in the next cell or call: it stands still for a while, as a lost machine would, and then goes on.

        The silence begins where the rank is about to send a message or to begin a collective for the (`after` + 1)-th time; it sends
        nothing meanwhile. What is sent to it waits. The ranks that wait for it are not deadlocked; an interrupt ends the silence. If the
        rank sends less than that, a line under the cell says so; new ranks know nothing of a silence that was planned before.

        Parameters
        ----------
        rank : int
        seconds : float
            On isolated ranks, of the clock that `Messenger.listen` goes by.
        after : int
            How many messages and collectives the rank sends before.

        Raises
        ------
        ValueError
            There is no such rank, or a number is negative.
        """
        self._targets([rank])
        if not seconds >= 0 or after < 0:
            raise ValueError(f"silence: seconds and after must be 0 or more; got {seconds!r} and {after!r}.")
        self._silences.setdefault(rank, []).append((after, float(seconds)))

    def _targets(self, targets: list[int] | None) -> list[int]:
        wrong = [t for t in targets or [] if not 0 <= t < self.n]
        if wrong:
            raise ValueError(f"there is no {wording.ranks(wrong)}: the ranks are 0 to {self.n - 1}.")
        return sorted(set(targets)) if targets else list(range(self.n))

    def _do(self, what: requests.Requests, limit: float | None, show: requests.Show | None = None) -> dict[int, dict]:
        """Send a round of requests, wait, and return every rank's reply; begins a new epoch if the ranks left messages behind."""
        self._be_up()
        call = any(request["do"] == "call" for request in what.values())
        limits = [seconds for seconds in (limit, time_limits.limit(call)) if seconds]
        self._round += 1
        common = {"round": self._round, "targets": sum(1 << r for r in what), "epoch": self._epoch}
        silences, self._silences = (self._silences, {}) if {q["do"] for q in what.values()} & {"cell", "call"} else ({}, self._silences)
        if isolated := self.isolated:
            for rank, planned in silences.items():
                for after, seconds in planned:
                    isolated.broker.coordinator.network.plan_silence(rank, seconds, after)
        common["trace"] = CAPACITY if self._traces is not None and not time_limits.limit() else 0
        try:
            found = requests.ask(
                self._connection,
                {r: {**q, **common, "silences": sorted(silences.get(r, []))} for r, q in what.items()},
                min(limits, default=None),
                show,
            )
            if any(reply is None for reply in found.values()):
                requests.settle(self._connection)
            if call:
                time_limits.record_timeouts(found)
        except RanksGone:
            self._end()
            raise
        except KeyboardInterrupt as stopped:
            self._epoch += 1  # some ranks may have left a transfer in progress on others
            self._keep_trace(dict(getattr(stopped, "replies", ())))
            raise
        if requests.left_messages(found):
            self._epoch += 1
        self._keep_trace(found)
        if not self.isolated:  # there, the broker keeps the silences, and a reply may say anything
            self._say_what_was_not_silent({rank: found[rank] for rank in silences if found.get(rank)})
        silent = {"outputs": [], "error": requests.error("NoAnswer", "the rank was interrupted before it could answer")}
        return {r: reply or silent for r, reply in found.items()}

    @staticmethod
    def _say_what_was_not_silent(found: dict[int, dict]) -> None:
        """Print which planned silences have not begun; `found`: the replies of the ranks for which there were some."""
        for rank, reply in found.items():
            state = {"left": []} if reply["error"] else reply["silences"]
            for after, _ in state["left"]:
                said = f"it has sent messages or begun collectives {state['sends']} times, and that was to be after {after}"
                print(f"ranks.silence: rank {rank} did not fall silent: {said}.")

    def _keep_trace(self, found: dict[int, dict | None]) -> None:
        traced = {rank: reply["trace"] for rank, reply in found.items() if reply and "trace" in reply}
        if self._traces is not None and traced:
            self._traces.append((traced, self.hosts))

    @contextmanager
    def trace(self, title: str = "Trace", show: bool = True, file: str | None = None) -> Iterator[list[Trace]]:
        """Record what the ranks do inside a ``with`` block, and show it at the end; nothing while grading.

        Parameters
        ----------
        title : str
        show : bool
            Whether to show the traces.
        file : str, optional
            Where to write the last one for Perfetto, https://ui.perfetto.dev.

        Yields
        ------
        list of Trace
            Empty until the end of the block; then one trace for each cell or call on the ranks.
        """
        traces: list[Trace] = []
        before, self._traces = self._traces, []
        try:
            yield traces
        finally:
            found, self._traces = self._traces, before
            traces += [Trace.from_replies(traced, title, hosts) for traced, hosts in found]
            if before is not None:
                before += found
            if show:
                from course_lib.plots import trace as figures  # matplotlib: only where there is something to show

                figures.show(traces)
            if traces and file:
                perfetto.write(traces[-1], Path(file))

    def _be_up(self) -> None:
        """Ensure that the ranks run.

        Ranks that were stopped for being idle are started again, and so are ended ones while grading, where their cells are replayed;
        otherwise RanksGone is raised.
        """
        if self.alive():
            return
        if self.idle_stop_seconds:
            idle_shutdown.bring_back(self)
        elif time_limits.limit() and not self._stopped:
            self.restart()
            self._replay_log.replay(lambda what: self._do(what, None))
        elif self._connection is None:
            raise RanksGone(STOPPED_MESSAGE)
        else:
            connection, self._connection = self._connection, None
            connection.check()


def _look_up(name: str) -> object:
    """Return a variable's value; runs on a rank."""
    from IPython import get_ipython

    names = get_ipython().user_ns
    if name not in names:
        raise NameError(f"{name} is not defined on this rank. Has its %%px cell been run?")
    return names[name]
