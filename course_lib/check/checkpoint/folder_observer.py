"""Observe isolated ranks' file operations on a checkpoint folder from outside; see `checkpoint.check`.

Nothing here runs on a rank. The system reports all changes in the ranks' folders in one order (`cluster.isolated.file_events`); the
broker runs one rank at a time (`cluster.isolated.scheduler`), and whenever all of them have stopped, the folders are read.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Sequence

import numpy as np

from course_lib.check import Check
from course_lib.check.checkpoint.files import IN_PLACE_WRITE_CAUSE, INDEX_FILE, TENSORS_SUFFIX, Files
from course_lib.cluster.isolated import file_events as fs
from course_lib.cluster.isolated.scheduler import MAX_RUN_SECONDS, RankScheduler

NO_STOP = 1 << 30
PIPE_OPEN_TIMEOUT_SECONDS = 0.3  # seconds after which a rank that opens a pipe counts as dead
REMOVED_TOO_EARLY_CAUSE = "old files that are removed or changed before the index lists the new ones"


class FolderObserver:
    """Watch the folders of four ranks until `close`.

    Parameters
    ----------
    check : Check
        The check that fails.
    isolated : IsolatedRanks
        Gives access to the ranks' processes.
    names : list of str
        The folder's name on each rank.
    bases : list of dict
        The files in it.
    also : int
        Events to report besides changes, as a bit mask.

    Attributes
    ----------
    moments : list of (int, list)
        For each moment at which all ranks had stopped and something had changed: its number, and each rank's files with their stamps.
    """

    def __init__(self, check: Check, isolated, names: list[str], bases: list[Files], also: int = 0):
        self.check, self.moments, self.events, self._old = check, [], fs.FileEvents(), {}
        self.folders = [fs.TracedFolder(f"{isolated.folder(r)}/{name}", isolated.process(r)) for r, name in enumerate(names)]
        mask = fs.CHANGE_EVENTS | fs.IN_DELETE_SELF | fs.IN_MOVE_SELF | also
        self._rank = {self.events.watch(folder.descriptor, mask): r for r, folder in enumerate(self.folders)}
        for r, folder in enumerate(self.folders):
            for file in bases[r]:  # also after it is renamed
                descriptor = folder.open(file)
                self._old[self.events.watch(descriptor, fs.IN_MODIFY | also)] = r, file
                fs.os.close(descriptor)
        self.events_seen: list[fs.InotifyEvent] = []
        self._snapshot(0)
        for r, (files, _) in enumerate(self.moments[0][1]):
            if files.keys() != bases[r].keys() or any(not np.array_equal(files[file], bases[r][file]) for file in files):
                check.fail(f"the files on rank {r} were changed before the call")
        self.events.read()
        self.events_seen.clear()  # caused by our own reading

    def close(self) -> None:
        """Release all file descriptors."""
        self.events.close()
        for folder in self.folders:
            with contextlib.suppress(OSError, fs.psutil.Error):
                folder.limit_file_size(None)
            folder.close()

    def snapshot(self) -> None:
        """Record the final contents."""
        self._snapshot(self.moments[-1][0] + 1)

    def files(self) -> list[Files]:
        """Files of each rank's folder at the last moment."""
        return [files for files, _ in self.moments[-1][1]]

    def before_the_index(self, group: list[int], old: Files) -> int:
        """Number of the last moment at which no rank of the group had a new index."""
        return max(
            number for number, found in self.moments if all(np.array_equal(found[r][0].get(INDEX_FILE), old.get(INDEX_FILE)) for r in group)
        )

    def turns(self, order: list[int], *, stop: tuple[int, int] | None = None, pipes: Sequence[str] = (), full_at: int = 0) -> RankScheduler:
        """Schedule the ranks in this order.

        Parameters
        ----------
        stop : (int, int), optional
            As for `RankScheduler`.
        pipes : sequence of str
            Files that this rank cannot open for writing: it blocks there.
        full_at : int
            Number of the moment after which nothing more can be written.
        """

        def moment(number: int) -> None:
            self._snapshot(number)
            if number == full_at:
                for folder in self.folders:
                    folder.limit_file_size(1)

        def left() -> None:
            self._snapshot(self.moments[-1][0] + 1)
            self.left = self.files()
            for name in pipes:
                self.folders[stop[0]].unblock_writers(name)

        def returned(rank: int) -> None:
            self._snapshot(self.moments[-1][0])
            self._returned.setdefault(rank, len(self.events_seen))  # whatever it sends later does not count

        self.left, self._returned = None, {}
        for name in pipes:
            self.folders[stop[0]].replace_by_pipe(name)
        return RankScheduler(
            order, moment, (stop[0], NO_STOP) if pipes else stop, left, PIPE_OPEN_TIMEOUT_SECONDS if pipes else MAX_RUN_SECONDS, returned
        )

    def states(self, rank: int) -> list[tuple]:
        """Files of a rank after each change, as in `FileTracer.states`."""
        found: list[tuple] = []
        for number, each in self.moments:
            files, stamps = each[rank]
            if not found or found[-1][2] != stamps or found[-1][1].keys() != files.keys():
                found.append((number, files, stamps))
        return found

    def wrote(self, rank: int) -> set[str]:
        """Names that a rank wrote, except the index."""
        writes = fs.IN_CREATE | fs.IN_MODIFY | fs.IN_MOVED_TO
        return {e.name for e in self._events_of(rank) if e.mask & writes and not e.mask & fs.IN_ISDIR and e.name != INDEX_FILE}

    def made_folders(self, rank: int) -> set[str]:
        """Names of the subfolders that a rank made, which end with /."""
        return {e.name + "/" for e in self._events_of(rank) if e.mask & fs.IN_CREATE and e.mask & fs.IN_ISDIR}

    def opened(self, rank: int) -> set[str]:
        """Files that a rank opened, if `also` includes that event."""
        files = [self._old[e.watch] for e in self.events_seen if e.mask & fs.IN_OPEN and e.watch in self._old]  # under whatever name
        return {name for r, name in files if r == rank}

    def removed(self, rank: int) -> set[str]:
        """Initial files that a rank removed."""
        return {e.name for e in self._events_of(rank) if e.mask & fs.IN_DELETE} & self.moments[0][1][rank][0].keys()

    def in_order(self, group: list[int], step: int, before: int | None, ended: bool) -> None:
        """Check the order of all changes: the old checkpoint stays intact until the new index lists parts that no longer change.

        If save has `ended` on all ranks of the group, nothing may change once it has returned on the first of them.
        """
        told, moved = set(), set()
        for event in self.events_seen:
            if event.mask & fs.IN_Q_OVERFLOW:
                self.check.fail("save changes its files thousands of times")
            rank, name = (self._rank[event.watch], event.name) if event.watch in self._rank else self._old.get(event.watch, (-1, ""))
            if rank not in group or not event.mask & (fs.CHANGE_EVENTS | fs.IN_DELETE_SELF | fs.IN_MOVE_SELF):
                continue
            if event.mask & (fs.IN_DELETE_SELF | fs.IN_MOVE_SELF):
                self.check.fail(f"save on rank {rank} removes the folder")
            if event.mask & fs.IN_MOVED_FROM:
                moved.add((rank, event.cookie))
            if name == INDEX_FILE:
                if event.watch in self._rank or rank not in told:
                    self._check_index_event(event, rank, told, moved, before)
            elif before is not None and name.startswith(f"{before}-") and name.endswith(TENSORS_SUFFIX) and not told:
                self.check.fail(
                    f"save on rank {rank} changes or removes {name} before the new {INDEX_FILE} is in place", REMOVED_TOO_EARLY_CAUSE
                )
            elif told and name == f"{step}-{group.index(rank)}{TENSORS_SUFFIX}":
                self.check.fail(f"{name} changes after the index lists it", "a file that is written again, or renamed too late")
        if ended:
            self._check_nothing_after_return(group)

    def _check_nothing_after_return(self, group: list[int]) -> None:
        first = min(group, key=lambda r: self._returned[r])
        for event in self.events_seen[self._returned[first] :]:
            rank, name = (self._rank[event.watch], event.name) if event.watch in self._rank else self._old.get(event.watch, (-1, ""))
            if rank in group and event.mask & fs.CHANGE_EVENTS:
                cause = "ranks that return before the index is in place and the old files are gone: they may start the next save meanwhile"
                self.check.fail(f"save has returned on rank {first}, but {name} still changes on rank {rank} afterwards", cause)

    def start_race(self, names: set[str]) -> threading.Thread:
        """Start removing these files as soon as one rank removes any of them, beginning at the end of its folder."""
        self.faster, self._over = 0, False

        def run() -> None:
            late: set[int] = set()
            while not self._over:
                select.select([self.events.descriptor], [], [], 0.05)
                new = self.events.read()
                self.events_seen += new
                for r in {self._rank[e.watch] for e in new if e.watch in self._rank and e.mask & fs.IN_DELETE} - late:
                    late.add(r)
                    for name in reversed(fs.os.listdir(self.folders[r].descriptor)):
                        self.faster += name in names and self.folders[r].remove(name)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def end_race(self, thread: threading.Thread) -> None:
        """Stop the race."""
        self._over = True
        thread.join()

    def _check_index_event(self, event: fs.InotifyEvent, rank: int, told: set, moved: set, before: int | None) -> None:
        if event.mask & (fs.IN_DELETE | fs.IN_MOVED_FROM):
            self.check.fail(f"save on rank {rank} removed {INDEX_FILE} before the new one had that name", IN_PLACE_WRITE_CAUSE)
        if event.mask & fs.IN_MODIFY or rank in told:
            self.check.fail(f"save on rank {rank} wrote {INDEX_FILE} in place", IN_PLACE_WRITE_CAUSE)
        if event.mask & fs.IN_MOVED_TO and (rank, event.cookie) not in moved:
            cause = "a temporary file elsewhere, perhaps on another disk; write it in the same folder"
            self.check.fail(f"save on rank {rank} renamed a file from another folder to {INDEX_FILE}", cause)
        told.add(rank)  # also by a hard link, where no index existed

    def _events_of(self, rank: int) -> list[fs.InotifyEvent]:
        return [event for event in self.events_seen if self._rank.get(event.watch) == rank]

    def _snapshot(self, number: int) -> None:
        new = self.events.read()
        self.events_seen += new
        if new or not self.moments:
            self.moments.append((number, [folder.files() for folder in self.folders]))
        else:
            self.moments[-1] = number, self.moments[-1][1]
