"""The running ranks, as the notebook's kernel sees them: run, call, interrupt, stop."""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import textwrap
import time
from concurrent.futures import wait

from course_lib import launcher, px, startup, wire, wording
from course_lib.client import Client, answer

# Set when grading: seconds that a cell may take, as nobody is there to stop it. When ranks die,
# new ones then come up and run again the cells that did not kill them.
UNATTENDED = "COURSE_UNATTENDED"
FIRST_TRY, START_LIMIT = 30.0, 60.0  # seconds to come up


class RanksGone(RuntimeError):
    """The ranks' processes have ended; `start` brings up new ones."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mRanksGone\x1b[0m: {self}"]


class Ranks:
    """The running ranks.

    Parameters
    ----------
    n : int
        How many.
    client : Client, optional
        Of engines that already run; new ones are started by default.
    """

    def __init__(self, n: int, client: Client | None = None):
        self.n, self.attached = n, None
        self._processes: launcher.Processes | None = None
        self._client = client
        self._round, self._epoch, self.hosts = 0, 0, []
        self._stopped, self._history = False, []
        self.cells: list[str] = []  # the cells that all ranks ran without an error, see `saving`
        began = time.monotonic()
        atexit.register(self.stop)
        try:
            self._come_up()
        except BaseException:
            self.stop()
            raise
        self.seconds = time.monotonic() - began

    def __repr__(self) -> str:
        if not self.alive():
            return f"{self.n} ranks, stopped"
        where = "this machine" if len(set(self.hosts)) == 1 else f"{len(set(self.hosts))} machines"
        return f"{self.n} ranks on {where}, up in {self.seconds:.1f} s"

    # Coming up and going away.

    def _come_up(self) -> None:
        """Bring up the ranks; a start that failed may have met what another program left behind, so there is a second try."""
        own = self._client is None
        for limit in (FIRST_TRY, START_LIMIT) if own else (START_LIMIT,):
            try:
                if own:
                    self._processes, self._client = startup.bring_up(self.n, limit)
                else:
                    startup.wait_for_engines(self._client, self.n, time.monotonic() + limit)
                self.hosts = startup.hosts(self._greet(limit))
                return
            except launcher.StartError:
                if limit == START_LIMIT:
                    raise
                self._end()
                atexit.register(self.stop)

    def _greet(self, limit: float) -> dict[int, dict]:
        """Ask the engines who they are."""
        engines = sorted(self._client.ids)[: self.n]
        hello = {"do": "hello", "folder": os.getcwd(), "path": [p for p in sys.path if p]}
        try:
            replies = self._ask({engine: hello for engine in engines}, limit)
        except RanksGone as gone:
            raise launcher.StartError(f"{gone}\n{self._log()}") from None
        for engine, reply in replies.items():
            if reply and reply["error"] and reply["error"]["name"] == "TimeLimit":
                raise launcher.StartError(f"rank {engine} did not answer within {limit:g} s.\n{self._log()}")
            if reply is None or reply["error"]:
                raise launcher.StartError(f"rank {engine} does not answer: {reply}\n{self._log()}")
        return {engine: wire.decode(reply["value"]) for engine, reply in replies.items()}

    def _log(self) -> str:
        return self._processes.log() if self._processes else ""

    def alive(self) -> bool:
        """Whether the ranks can run a cell."""
        if self._client is None:
            return False
        return not (self._processes and self._processes.ended())

    def stop(self) -> None:
        """End all processes of this cluster; attached engines are left as they are."""
        self._stopped = True
        self._end()

    def _end(self) -> None:
        client, self._client = self._client, None
        processes, self._processes = self._processes, None
        if processes:
            processes.stop()
        if client:
            client.close(linger=0)
        atexit.unregister(self.stop)

    def restart(self) -> None:
        """End the ranks and bring up new ones, with empty memories."""
        self._end()
        self._stopped = False
        atexit.register(self.stop)
        self._come_up()

    # Running things.

    def run(self, source: str, *, targets: list[int] | None = None, label: str = "cell", limit: float | None = None) -> list:
        """Run source code on the ranks, and wait.

        Parameters
        ----------
        source : str
            Python, as in a notebook cell.
        targets : list of int, optional
            The ranks; all by default.
        label : str
            How messages name the code, such as "cell [5]".
        limit : float, optional
            Seconds after which the ranks are interrupted.

        Returns
        -------
        list of (int, dict)
            Rank and reply ("outputs", "error").

        Raises
        ------
        RanksGone
            A rank's process ended.
        """
        chosen = self._targets(targets)
        requests = {r: {"do": "cell", "source": source, "label": label} for r in chosen}
        replies = self._begin(requests, limit)
        if not any(reply["error"] for reply in replies.values()):
            self.cells.append(source)
        if _unattended() and not any(reply["error"] and reply["error"]["name"] == "TimeLimit" for reply in replies.values()):
            self._history.append(requests)
        return list(replies.items())

    def call(self, function, arguments: list[dict] | dict | None = None, *, limit: float = 60.0, show: bool = False) -> list:
        """Call a function on every rank, and fetch what it returns.

        Parameters
        ----------
        function : str or function
            The name of a function that a ``%%px`` cell has defined on the ranks; or a function
            of this notebook, whose source is sent there. It sees the ranks' own names.
        arguments : dict, or list of dict
            Keyword arguments, the same for all, or one dict a rank.
        limit : float
            Seconds after which the ranks are interrupted.
        show : bool
            Whether to show what the ranks print.

        Returns
        -------
        list
            One value a rank: numbers, texts, arrays, and tuples, lists and dicts of these. Other
            objects stay on the rank; a `wire.Opaque` stands for them.

        Raises
        ------
        px.RanksError
            The function raised on some rank.
        RanksGone
            A rank's process ended.
        """
        source, name = None, function
        if not isinstance(function, str):
            source, name = textwrap.dedent(inspect.getsource(function)), function.__name__
        each = arguments if isinstance(arguments, list) else [arguments or {}] * self.n
        if len(each) != self.n:
            raise ValueError(f"ranks.call: expected one dict of arguments for each of {self.n} ranks; got {len(each)}.")
        requests = {r: {"do": "call", "function": name, "source": source, "arguments": each[r]} for r in range(self.n)}
        replies = self._begin(requests, limit)
        if show:
            px.show_outputs(list(replies.items()), self.n)
        px.raise_errors(list(replies.items()))
        self.traffic = [[tuple(e) for e in reply.get("traffic", [])] for reply in replies.values()]
        return [wire.decode(reply["value"]) for reply in replies.values()]

    def pull(self, name: str) -> list:
        """The value that a variable has on each rank, one a rank, as plain data (see `call`)."""
        return self.call(_look_up, {"name": name})

    def _targets(self, targets: list[int] | None) -> list[int]:
        wrong = [t for t in targets or [] if not 0 <= t < self.n]
        if wrong:
            raise ValueError(f"there is no {wording.ranks(wrong)}: the ranks are 0 to {self.n - 1}.")
        return sorted(set(targets)) if targets else list(range(self.n))

    def _begin(self, requests: dict[int, dict], limit: float | None) -> dict[int, dict]:
        """One round: send the requests, wait, and give every rank's reply."""
        if not self.alive():
            if self._stopped or not _unattended():
                raise RanksGone(self._obituary())
            self._heal()
        limit = min(limit or _unattended() or 0, _unattended() or limit or 0) or None
        self._round += 1
        common = {"round": self._round, "targets": sum(1 << r for r in requests), "epoch": self._epoch}
        replies = self._ask({r: {**q, **common} for r, q in requests.items()}, limit)
        if any(reply is None for reply in replies.values()):
            self._settle()
        if any(reply and reply.get("abandoned") for reply in replies.values()):
            self._epoch += 1
        silent = {"outputs": [], "error": _error("NoAnswer", "the rank was interrupted before it could answer")}
        return {r: reply or silent for r, reply in replies.items()}

    def _heal(self) -> None:
        history, self._history = self._history, []
        self.restart()
        for requests in history:
            self._begin(requests, None)
            self._history.append(requests)

    def _ask(self, requests: dict[int, dict], limit: float | None) -> dict[int, dict | None]:
        futures = {r: self._client.request(r, q) for r, q in requests.items()}
        deadline = time.monotonic() + limit if limit else None
        late: list[int] = []
        try:
            while wait(futures.values(), 0.25).not_done:
                self._client.look()
                if self._processes and self._processes.ended():
                    raise RanksGone(self._obituary())
                if deadline and time.monotonic() > deadline:
                    late = [r for r, f in futures.items() if not f.done()]
                    self._interrupt(futures)
        except KeyboardInterrupt:
            self._interrupt(futures)
            if any(answer(f) is None for f in futures.values()):
                self._settle()
            self._epoch += 1  # some may have left a transfer that others were in
            raise
        replies = {r: answer(f) for r, f in futures.items()}
        for r in late:
            what = f"still ran after {limit:g} s, and was interrupted. Does a loop never end?"
            place = (replies[r] or {}).get("error") or {}
            replies[r] = {"outputs": [], "abandoned": True, "error": _error("TimeLimit", what, place.get("lines", []))}
        return replies

    def interrupt(self) -> None:
        """Interrupt what the ranks compute, as Ctrl-C would."""
        self._client.interrupt(list(range(self.n)))

    def _interrupt(self, futures: dict) -> None:
        """Interrupt until all have answered; end ranks that do not react."""
        for _ in range(8):
            self._client.interrupt([r for r, f in futures.items() if not f.done()])
            self._client.look()
            if not wait(futures.values(), 0.5).not_done:
                return
            if self._processes and self._processes.ended():
                raise RanksGone(self._obituary())
        stubborn = [r for r, f in futures.items() if not f.done()]
        self._end()
        raise RanksGone(
            f"{wording.ranks(stubborn)} did not react to the interrupt, so all ranks were ended. "
            f"Run cluster.start({self.n}) again, and the cells that define what you need."
        )

    def _settle(self) -> None:
        """After an interrupt, an engine drops what is queued: ask until all ranks answer again."""
        for _ in range(20):
            futures = {r: self._client.request(r, {"do": "nothing"}) for r in range(self.n)}
            wait(futures.values(), 1.0)
            if all(f.done() and answer(f) is not None for f in futures.values()):
                return
        self._end()
        raise RanksGone(f"the ranks did not answer after an interrupt and were ended. Run cluster.start({self.n}) again.")

    def _obituary(self) -> str:
        again = f"Run cluster.start({self.n}) again"
        if self._processes is None:
            return f"the ranks were stopped. {again}."
        what = self._processes.obituary()
        self._end()
        return f"{what} All ranks end with it. {again}, and the cells that define what you need."


def _look_up(name: str) -> object:
    """Runs on a rank."""
    if name not in globals():
        raise NameError(f"{name} is not defined on this rank. Has its %%px cell been run?")
    return globals()[name]


def _unattended() -> float | None:
    return float(os.environ.get(UNATTENDED, 0)) or None


def _error(name: str, message: str, lines: list[str] | None = None) -> dict:
    return {"name": name, "message": message, "place": "", "lines": lines or [], "kind": [name]}
