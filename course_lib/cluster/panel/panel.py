"""The panel that `Ranks.panel` returns: a widget below a cell, kept up to date by a thread; a table in plain text without one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from IPython import get_ipython

from course_lib.cluster.panel import status
from course_lib.cluster.panel.status import Absence, RankStatus
from course_lib.plots.figures import on_slides
from course_lib.utils import wording

if TYPE_CHECKING:
    from course_lib.cluster.connection import ClusterConnection

INTERVAL_SECONDS = 0.2  # from one look at the ranks to the next
REPEAT_SECONDS = 2.0  # after which the same is sent again while a cell runs; the page thus notices if this kernel falls silent
UNSEEN_SECONDS = 30.0  # in which nothing runs in this kernel and no page shows the panel, until it rests
STRIP_TARGET = "course-panel"  # name of the comm to the strip of a lecture's slides
NO_SOURCE = "The states of these ranks cannot be read here: they are on another machine, or isolated for grading."
Send = Callable[[dict], None]


class Panel:
    """A live panel of what each rank does.

    The thread ends with the ranks, with `close`, and when no page shows the panel; it continues when one does, or with new ranks.

    Parameters
    ----------
    ranks : Ranks
    """

    def __init__(self, ranks):
        self._ranks, self._widget = ranks, None
        self._outlets: dict[str, Send] = {}
        self._lock, self._thread, self._resumed = threading.RLock(), None, False
        self._connection: ClusterConnection | None = None  # the last one, of which `_known` are the states
        self._known: list[RankStatus] = []
        self._idle_since = time.monotonic()

    def look(self) -> tuple[str, str, list[RankStatus]]:
        """Look at the ranks.

        Returns
        -------
        head : str
            The number of ranks, and whether they run a cell.
        note : str
            What else there is to know; may be empty.
        ranks : list of RankStatus
        """
        with self._lock:
            connection, n = self._ranks.connection, self._ranks.n
            source = connection and connection.source  # before `closed` is read: without a source, an open connection never had one
            if connection is None or connection.closed:
                absence = self._ranks.absence
                known = self._known if len(self._known) == n else [RankStatus(r, "gone", "", "") for r in range(n)]
                gone = absence is Absence.GONE
                what = "gone" if gone else "stopped"
                self._known = [RankStatus(k.rank, "gone", what, what, sent=k.sent, line=k.line) for k in known]
                return f"{_count(n)}: {absence}", self._reason() if gone else "", self._known
            self._connection = connection
            if source is None:
                return _count(n), NO_SOURCE, []
            source.refresh()
            self._known = status.statuses(source, getattr(connection.client, "stalls", {}))
            return f"{_count(n)}: {_activity(self._known)}", self._reason(), self._known

    def _reason(self) -> str:
        """Say why ranks are gone, if that is known."""
        connection = self._connection
        if connection is None:
            return ""
        if not connection.end_reason and connection.processes and connection.processes.ended():
            connection.end_reason = connection.processes.exit_reason()
        return connection.end_reason

    def __repr__(self) -> str:
        head, note, found = self.look()
        return "\n".join(filter(None, (head, note, status.table(found) if found else "")))

    def _repr_mimebundle_(self, **_: object) -> dict:
        return self._live() | {"text/plain": repr(self)}

    def _live(self) -> dict:
        """Return the widget as JupyterLab shows it, and keep it up to date; empty where there is none."""
        kernel, source = getattr(get_ipython(), "kernel", None), getattr(self._ranks.connection, "source", None)
        if kernel is None or (self._ranks.connection and source is None):
            return {}
        try:
            if self._widget is None:
                self._widget = _widget_class()(data=self._content())
                self._widget.content = self._content
                self._widget.observe(self._displayed, "views")
                get_ipython().events.register("pre_run_cell", self._busy)
                get_ipython().events.register("post_run_cell", self._idle)
            shown = self._widget._repr_mimebundle_()
        except ImportError:
            return {}
        self._busy()  # in a cell
        self._outlets["widget"] = self._send_to_widget
        self.resume()
        return (shown[0] if isinstance(shown, tuple) else shown) or {}

    def resume(self) -> None:
        """Keep the panel up to date, if it is shown; where a kernel draws for slides, also the strip below them."""
        with self._lock:
            if on_slides() and "strip" not in self._outlets and getattr(get_ipython(), "kernel", None) is not None:
                self._outlets["strip"] = _strip(self._content)
            self._resumed = True
            if self._outlets and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="panel", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Remove the panel from the page, and end its thread."""
        with self._lock:
            widget, self._widget = self._widget, None
            self._outlets.clear()
        if widget is not None:
            for event, function in (("pre_run_cell", self._busy), ("post_run_cell", self._idle)):
                with contextlib.suppress(ValueError):
                    get_ipython().events.unregister(event, function)
            widget.close()

    # The thread.

    def _run(self) -> None:
        """Send what has changed, until nobody wants it or the ranks have ended; the thread's main function."""
        before, due = None, 0.0
        while True:
            with self._lock:
                self._resumed = False
            content, now = self._content(), time.monotonic()
            if content["state"] != before or (content["running"] and now >= due):
                before, due = content["state"], now + REPEAT_SECONDS
                for name, send in [*self._outlets.items()]:
                    try:
                        send(content)
                    except Exception:  # its connection is closed
                        self._outlets.pop(name, None)
            with self._lock:
                if self._is_unseen():
                    self._outlets.pop("widget", None)
                if not self._outlets or (content["ended"] and not self._resumed):
                    self._thread = None
                    return
            time.sleep(INTERVAL_SECONDS)

    def _content(self) -> dict:
        """Return what the page shows, as plain data; "state" is what is compared."""
        try:
            head, note, found = self.look()
        except Exception as error:  # whatever it is, the page must not show what is no longer true
            head, note, found = _count(self._ranks.n), f"The panel cannot read their states ({type(error).__name__}: {error}).", []
        rows = [[k.rank, k.symbol, k.kind, k.text, k.short, k.held, wording.size(k.sent), k.line, k.since] for k in found]
        ended = self._ranks.connection is None and self._ranks.absence is not Absence.STARTING
        running = any(k.kind in status.RUNNING for k in found)
        return {"state": [head, note, rows], "ages": [k.seconds for k in found], "running": running, "ended": ended}

    def _send_to_widget(self, content: dict) -> None:
        self._widget.data = content

    # Whether a page shows the widget. Pages say so in messages that this kernel reads only between cells.

    def _displayed(self, change: dict) -> None:
        if change["new"]:
            with self._lock:
                self._outlets["widget"] = self._send_to_widget
                self.resume()

    def _busy(self, *_: object) -> None:
        self._idle_since = None

    def _idle(self, *_: object) -> None:
        self._idle_since = time.monotonic()

    def _is_unseen(self) -> bool:
        widget, since = self._widget, self._idle_since
        return widget is not None and not widget.views and since is not None and time.monotonic() - since > UNSEEN_SECONDS


def _count(n: int) -> str:
    return f"{n} ranks" if n > 1 else "1 rank"


def _activity(found: list[RankStatus]) -> str:
    gone = [k.rank for k in found if k.kind == "gone"]
    if gone:
        return f"{wording.ranks(gone)} {'is' if len(gone) == 1 else 'are'} gone"
    return "a cell is running" if any(k.kind in status.RUNNING for k in found) else "no cell is running"


def _strip(content: Callable[[], dict]) -> Send:
    """Open the comm to a lecture's page; a page that is loaded again asks for the content."""
    from comm import create_comm

    strip = create_comm(target_name=STRIP_TARGET, data={})
    strip.on_msg(lambda _: strip.send(data=content()))
    return lambda content: strip.send(data=content)


@cache
def _widget_class() -> type:
    import anywidget
    import traitlets

    class PanelWidget(anywidget.AnyWidget):
        _esm = Path(__file__).with_name("panel.js")
        views = traitlets.Int(0).tag(sync=True)  # of the page; written by it
        data = traitlets.Dict().tag(sync=True)
        content: Callable[[], dict] | None = None

        def get_state(self, key: object = None, drop_defaults: bool = False) -> dict:
            """Return the state for a page, which may be a new one: with what is true now."""
            state = super().get_state(key, drop_defaults)
            return state | {"data": self.content()} if key is None and self.content else state

    return PanelWidget
