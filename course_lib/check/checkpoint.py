"""How part 27's `save` and `load` are put to the test: what is on the disk at every moment, and what comes back on other ranks.

Where a notebook is graded, ranks share no disk. So each rank has a folder of its own, here as there; what they have written is put
together in the kernel, as it would be in one folder, and given to the ranks that load. What has a lower-case name and no underscore
runs on the ranks.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time

import numpy as np

from course_lib.check import checkpoint_files as disk
from course_lib.check.checkpoint_watch import Watch, its_own
from course_lib.check.groups import GroupCheck
from course_lib.cluster.replies import RanksError


def folder():
    """This rank's folder."""
    return os.path.join(tempfile.gettempdir(), f"checkpoint-{os.getuid()}-{os.getpid()}")


def clear():
    """Remove it."""
    shutil.rmtree(folder(), ignore_errors=True)


def lay_out(files):
    """A folder with these files, and no others."""
    clear()
    os.makedirs(folder())
    for name, content in files.items():
        with open(os.path.join(folder(), name), "wb") as file:
            file.write(content.tobytes())


def seen():
    """What is in the folder."""
    found = {}
    for entry in sorted(os.scandir(folder()), key=lambda entry: entry.name):
        with open(entry.path, "rb") as file:
            found[entry.name] = np.frombuffer(file.read(), np.uint8)
    return found


def saved(step, shards, place, slow, limit):
    """Call save. `slow`: rest when the folder changes, and where others go on after a collective; `limit`: bytes of a file, or 0.

    Returns what was in the folder when, each time that it changed; the shards after the call; what a `Watch` found.
    """
    comm, states, before, calls = everyone.Split(color=place[0], key=place[1]), [], [None], [0]

    def look():
        try:
            now = sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in os.scandir(folder()))
        except FileNotFoundError:  # it goes this very moment, by another thread
            return
        if now != before[0]:
            before[0] = now
            states.append((time.monotonic(), seen()))
            if slow and len(states) > 1:
                time.sleep(0.03)

    def line(frame, event, argument):
        watch.on = False
        look()
        if slow and calls[0]:
            time.sleep(0.06)
            calls[0] = 0
        watch.on = True
        return line

    def call(frame, event, argument):
        if its_own(frame.f_code):
            return line(frame, event, argument)
        calls[0] += "collectives" in frame.f_code.co_filename and not frame.f_code.co_name.startswith("Get_")
        return None

    mine = {name: array.copy() for name, array in shards.items()}
    function, (soft, hard), watch = save, resource.getrlimit(resource.RLIMIT_FSIZE), Watch(folder(), line)
    try:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        sys.settrace(call)
        watch.on = True
        function(folder(), step, mine, comm)
    finally:
        watch.on = False
        sys.settrace(None)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    look()
    return states, mine, watch.found


def loaded(place):
    """Call load."""
    return load(folder(), everyone.Split(color=place[0], key=place[1]))


class CheckpointCheck(GroupCheck):
    """A `Check` of `save` and `load`, in groups of the four ranks."""

    def save(self, size: int = 4) -> CheckpointCheck:
        """One checkpoint after the other; each time, another rank is slow."""
        groups, bases, step = self.groups(size), [{} for _ in range(4)], 0
        self.case, places = self.named(groups, np.float64), self.places(groups)
        before: list = [None] * len(groups)
        for turn in range(size + 1):  # in the first, none is slow
            step += int(self.random.integers(1, 90))
            shards = self._draw(groups)
            answers = self._saved(step, shards, places, bases, [place[1] == turn - 1 for place in places], [0] * 4)
            for r, (_, after, wrong) in enumerate(answers):
                if wrong:
                    self.fail(f"save on rank {r} {wrong[0]}", "a file that is changed in its place: write it beside, and use os.replace")
                for name, array in shards[r].items():
                    self.array(after[name], array, name=f"shards[{name!r}], after save,", rank=r, cause="a change of what was given")
            for color, group in enumerate(groups):
                merged = self._moments(
                    [answers[r][0] for r in group], bases[group[0]], before[color], (step, [shards[r] for r in group]), group
                )
                before[color] = step, [shards[r] for r in group]
                for r in group:
                    bases[r] = merged
        self.ranks.call(clear)
        return self

    def full(self) -> CheckpointCheck:
        """One rank's disk is full: what was there before stays whole. When no disk is full, save raises nothing."""
        groups = self.groups(4)
        self.case, places, (group,) = f"{self.named(groups, np.float64)}, one disk full", self.places(groups), groups
        shards, late = self._draw(groups), self._draw(groups, large=True)
        old = 7, [shards[r] for r in group]
        base = disk.written(*old)
        for broken in (0, 3):
            try:
                self._saved(9, late, places, [base] * 4, [False] * 4, [4096 * (place[1] == broken) for place in places])
            except RanksError:
                found = self.ranks.call(seen)
                merged = self._together(base, [found[r] for r in group], group)
                self._whole(merged, old, None, group, "after a rank could not write")
            else:
                self.fail("save has raised nothing, and one rank could not write its file", "an except that hides the error")
        self._saved(9, late, places, [base] * 4, [False] * 4, [0] * 4)
        self.ranks.call(clear)
        return self

    def load(self, size: int = 4, old: int = 4) -> CheckpointCheck:
        """Load what `old` ranks have written; each rank has only the files that have something for it."""
        groups, step = self.groups(size), int(self.random.integers(1, 900))
        self.case, places = f"{self.named(groups, np.float64)}, a checkpoint of {old} ranks", self.places(groups)
        parts = self._draw([list(range(old))], ranks=old)
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        files, given, wants = disk.written(step, parts), [], []
        for color, i in places:
            n = len(groups[color])
            cuts = {name: slice(i * -(-len(a) // n), (i + 1) * -(-len(a) // n)) for name, a in whole.items()}
            wants.append({name: array[cuts[name]] for name, array in whole.items()})
            given.append(dict(files={name: content for name, content in files.items() if disk.needed(name, step, parts, cuts)}))
        self.ranks.call(lay_out, given)
        answers = self.ranks.call(loaded, [dict(place=place) for place in places], show=self.show)
        for r, (answer, want) in enumerate(zip(answers, wants, strict=True)):
            got_step, got = self.tuple(answer, 2, name="load", rank=r)
            self.value(got_step, step, name="the step", rank=r)
            if not isinstance(got, dict) or sorted(got) != sorted(want):
                came = ", ".join(map(str, got)) if isinstance(got, dict) else type(got).__name__
                self.fail(f"load on rank {r} must give a dict with {', '.join(want)}; got {came}")
            for name, array in want.items():
                n = len(groups[places[r][0]])
                cause = f"parts that are not those of {n} ranks: with c rounded up, rank r has the numbers from r * c to (r + 1) * c"
                self.array(got[name], array, name=f"the part of {name!r}", rank=r, cause=cause, dtype=bool(array.size))
        self.ranks.call(clear)
        return self

    def damaged(self) -> CheckpointCheck:
        """What is no checkpoint is said to be none, with the name of the file; what is one is loaded."""
        groups = [[0, 1, 2, 3]]
        parts, places = self._draw(groups), self.places(groups)
        whole, most = disk.written(30, parts), int(np.argmax([sum(map(len, part.values())) for part in parts]))
        self.case = "four ranks, undamaged"
        self.ranks.call(lay_out, dict(files=whole))
        self.ranks.call(loaded, [dict(place=place) for place in places])
        for name, content, what in disk.damages(whole, f"30-{most}.safetensors"):
            self.case = f"four ranks, {name} {what}"
            files = {k: v for k, v in whole.items() if k != name} | ({} if content is None else {name: content})
            self.ranks.call(lay_out, dict(files=files))
            try:
                answers = self.ranks.call(loaded, [dict(place=place) for place in places])
            except RanksError as error:
                if name not in str(error) or not any(kind in error.short for kind in ("ValueError", "FileNotFoundError", "OSError")):
                    problem = f"load must raise a ValueError or FileNotFoundError that names {name}; it said: {error.short}"
                    self.fail(problem, "an error of zipfile or json that is passed on as it is")
            else:
                self.fail(f"load took a checkpoint whose {name} {what}, and gave {answers[0]!r}", "an except that hides it")
        self.ranks.call(clear)
        return self

    def _saved(self, step: int, shards: list[dict], places: list, bases: list[dict], slow: list[bool], limits: list[int]) -> list:
        """Lay out the ranks' folders and have all of them save; what was in each folder when."""
        self.ranks.call(lay_out, [dict(files=base) for base in bases])
        given = [dict(step=step, shards=shards[r], place=places[r], slow=slow[r], limit=limits[r]) for r in range(4)]
        return self.ranks.call(saved, given, show=self.show)

    def _draw(self, groups: list[list[int]], large: bool = False, ranks: int = 4) -> list[dict[str, np.ndarray]]:
        """Parts for each rank: of some lengths, perhaps 0, and dtypes."""
        names = {"weights": np.float32, "first moment": np.float64, "order of the data": np.int64}
        found: list[dict] = [{} for _ in range(ranks)]
        for group in groups:
            for name, dtype in names.items():
                lengths = self.random.integers(0, 6, len(group)) + (3000 if large else 0)
                lengths[int(self.random.integers(0, len(group)))] = 0 if not large else 2500
                for r, length in zip(group, lengths, strict=True):
                    found[r][name] = (100 * self.random.standard_normal(length)).astype(dtype)
        return found

    def _moments(self, states: list, base: dict, before: tuple | None, want: tuple, group: list[int]) -> dict:
        """At every moment of a save, what is on the disk is the old checkpoint, or the new one; the files in the end."""
        now, reached = [base for _ in group], False
        for _, i, files in sorted(((when, i, files) for i, own in enumerate(states) for when, files in own), key=lambda state: state[:2]):
            now[i] = files
            merged = self._together(base, now, group)
            reached = self._whole(merged, want, None if reached else (before or "none"), group, "for a moment in save") or reached
        self._whole(merged, want, None, group, "after save")
        step, parts = want
        expected = {disk.INDEX, *(f"{step}-{i}.safetensors" for i in range(len(parts)))}
        if set(merged) != expected:
            more, less = sorted(set(merged) - expected), sorted(expected - set(merged))
            said = f"there is {', '.join(more)}, too" if more else f"{', '.join(less)} is missing"
            self.fail(f"after save, {said}", "files of an earlier checkpoint, or under their first name, that nobody has removed")
        return merged

    def _together(self, base: dict, now: list[dict], group: list[int]) -> dict:
        """The files of a folder that the group's ranks would share."""
        merged = disk.together(base, now)
        if isinstance(merged, str):
            self.fail(f"two of the ranks {group} write {merged}", "a file's name without the rank, or an index from every rank")
        return merged

    def _whole(self, files: dict, want: tuple, other: object, group: list[int], when: str) -> bool:
        """Whether the files are the checkpoint `want`; else they must be the `other` ("none": no index)."""
        if other == "none" and disk.INDEX not in files:
            return False
        try:
            step, lengths, found = disk.read(files)
        except disk.Broken as broken:
            cause = "an index that is written before all ranks have written, in its place and not beside it; or old files that go too soon"
            self.fail(f"{when}, what is on the disk is no whole checkpoint: {broken}", cause)
        for right, (number, parts) in ((True, want), *([(False, other)] if isinstance(other, tuple) else [])):
            same = all(
                np.array_equal(found[i].get(name), array) for i, part in enumerate(parts[: len(found)]) for name, array in part.items()
            )
            if step == number and len(found) == len(parts) and same:
                wanted = {name: [len(part[name]) for part in parts] for name in parts[0]}
                if lengths != wanted:
                    self.fail(f"{when}, the index has the lengths {lengths}, expected {wanted}", "the lengths of one rank alone")
                return right
        self.fail(
            f"{when}, the checkpoint on the disk (step {step}, {len(found)} ranks) is not the one that was saved",
            "parts of another step or rank",
        )
        return False
