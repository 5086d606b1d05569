"""Check of part 27's `save` and `load`: the files at every moment of a save, and the arrays loaded on other ranks.

Isolated ranks (grading) share no disk, so each rank has a folder of its own, everywhere. The kernel merges what they wrote, as if it
were one folder, and gives the result to the ranks that load. With isolated ranks, file operations are observed from outside
(`folder_observer`), and nothing that a rank reports about them counts. On a student's machine, and where the system cannot report
file events, they are observed from inside the process (`file_tracer`).
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Sequence

import numpy as np

from course_lib.check.cases.layouts import CONTIGUOUS
from course_lib.check.checkpoint import contract
from course_lib.check.checkpoint import files as disk
from course_lib.check.checkpoint.crash_consistency import check_every_state, check_files, merge_folders
from course_lib.check.checkpoint.folder_observer import FolderObserver
from course_lib.check.checkpoint.on_ranks import call_load, call_save, call_save_traced, read_own_folder, remove_folder, write_folder
from course_lib.check.groups import GroupCheck
from course_lib.cluster.isolated import file_events
from course_lib.cluster.replies import RanksError
from course_lib.utils import wording

TEMPORARY_SUFFIX = ".tmp"  # suffix of names that no checkpoint file has


def _cleans_up(method: Callable) -> Callable:
    """Remove the ranks' folders after a method, also if the check has failed."""

    @functools.wraps(method)
    def wrapped(self: CheckpointCheck, *arguments: object, **keywords: object) -> CheckpointCheck:
        try:
            result = method(self, *arguments, **keywords)
        except BaseException:
            with contextlib.suppress(RanksError):  # the first error says more
                self._remove_folders()
            raise
        self._remove_folders()
        return result

    return wrapped


class CheckpointCheck(GroupCheck):
    """A `Check` of `save` and `load`, in groups of the four ranks."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, ranks, show=show)
        self._names: list[str] = []  # names of the ranks' folders
        self._observer: FolderObserver | None = None  # the observer of the last save

    @_cleans_up
    def save(self, size: int = 4) -> CheckpointCheck:
        """Check saves one after the other among leftover files, with two ranks slow in turn; in the last one, a group saves alone.

        Returns the check itself, as all checks here do, so that calls can be chained.
        """
        groups, bases, step = self.groups(size), [{} for _ in range(4)], 0
        self.case, places = self.describe_groups(groups, np.float64), self.colors_and_keys(groups)
        before: list = [None] * len(groups)
        names, shared = set(), ()
        made_folders: list[set[str]] = [set() for _ in range(4)]
        for turn, rests in enumerate(self._slow_places(size)):
            last_step = step
            step += int(self.random.integers(1, 90))
            last, shards = turn == 3, disk.draw_shards(self.random, groups)
            for color, group in enumerate(groups):
                if turn in (1, 2):
                    ranks = 6 if turn == 1 else 1
                    before[color] = step - 1, disk.draw_shards(self.random, [list(range(ranks))], ranks)
                    bases[group[0]] = disk.checkpoint_files(*before[color])
                left = disk.leftover_files(step, size)
                # An interrupted save of this step may have left what an earlier one has written for its own.
                own = {name.replace(str(last_step), str(step)) for name in names}
                left |= dict.fromkeys(names | own, left["index.new"])
                left = bases[group[0]] | left
                for r in group:
                    # Others would not see on their own disks that this rank removes its folders.
                    bases[r] = left | dict.fromkeys(made_folders[r], np.empty(0, np.uint8))
            slow, idle = [place[1] == rests for place in places], [last and place[0] > 0 for place in places]
            answers = self._call_save(step, shards, places, bases, slow=slow, idle=idle)
            self._check_traffic("save", groups[:1] if last else groups)
            for color, group in enumerate(groups[:1] if last else groups):
                names |= self._check_writes([answers[r] for r in group], [shards[r] for r in group], group)
                for r in group:
                    made_folders[r] |= self._made_folders(answers[r], r)
                want = step, [shards[r] for r in group]
                self._check_order(group, step, before[color], ended=True)
                states = [answers[r][0] for r in group]
                returned = {r: answers[r][-1] for r in group}
                bases[group[0]], before[color] = check_every_state(self, states, bases[group[0]], before[color], want, group), want
                self._check_return(states, returned)
                removed = [set(answers[r][4]) for r in group]
                if any(one & other for i, one in enumerate(removed) for other in removed[:i]):
                    shared = step, shards, places, bases[group[0]] | disk.leftover_files(step + 9, 2)
        if shared:  # last, as other findings are more specific
            self._removes(*shared)
        self.covers("dtypes", "special values", "layouts", "sizes", "group order", "group sizes", "repetition")
        self.covers("same ranks twice", "arguments")
        return self

    def _check_traffic(self, function: str, groups: list[list[int]], times: int = 1) -> None:
        """Check what each rank of these groups has sent in one or two calls of a function."""
        for group in groups:
            for r in group:
                moved = self.ranks.traffic[r]
                name = function if times == 1 else f"{function}, called twice,"
                cause = "the parts themselves, which each rank writes and reads on its own"
                most = times * contract.BYTES[function].number
                self.sent(moved, most, name=name, rank=r, cause=cause, limit=contract.BYTES[function])
                most_calls = times * int(contract.CALLS[function].number)
                self.calls(moved, most_calls, group=group, name=name, rank=r, limit=contract.CALLS[function])

    @_cleans_up
    def ends(self) -> CheckpointCheck:
        """Check saves in which one rank dies, each rank in turn, before it writes and before any line, and the save after it."""
        groups = self.groups(4)
        self.case, places, (group,) = (
            f"{self.describe_groups(groups, np.float64)}, a rank dies in save",
            self.colors_and_keys(groups),
            groups,
        )
        shards, late = disk.draw_shards(self.random, groups), disk.draw_shards(self.random, groups)
        old, new = (7, [shards[r] for r in group]), (9, [late[r] for r in group])
        base = disk.checkpoint_files(*old)
        *_, wrote, _, lines, _ = zip(*self._call_save(9, late, places, [base] * 4), strict=True)
        for rank in self.random.permutation(4).tolist():
            for line in (-1, int(self.random.integers(2, max(lines[rank], 2) + 1))):
                with contextlib.suppress(RanksError):  # the other ranks wait for it
                    self._call_save(9, late, places, [base] * 4, dies=[line * (r == rank) for r in range(4)], hangs=wrote[rank])
                self._check_order(group, 9, old)
                merged = self._files_left(base, group)
                saved = check_files(self, merged, new, old, group, f"after rank {rank} has died in the middle of save")
            self._save_again(merged, 12 if saved else 9, new if saved else old, places, group)
        return self

    def _save_again(self, left: dict, step: int, before: tuple, places: list, group: list[int]) -> None:
        """Check a save among the files that an interrupted one has left."""
        shards = disk.draw_shards(self.random, [group])
        case = self.case
        self.case += ", and the next save"
        answers = self._call_save(step, shards, places, [left] * 4)
        self._check_order(group, step, before)
        want = step, [shards[r] for r in group]
        check_every_state(self, [answers[r][0] for r in group], left, before, want, group)
        self.case = case

    @_cleans_up
    def full(self) -> CheckpointCheck:
        """Check saves on a full disk: the previous checkpoint stays intact, save raises, and with enough space it does not."""
        groups = self.groups(4)
        self.case, places, (group,) = f"{self.describe_groups(groups, np.float64)}, a full disk", self.colors_and_keys(groups), groups
        shards, late = disk.draw_shards(self.random, groups), disk.draw_shards(self.random, groups, large=True)
        old = 7, [shards[r] for r in group]
        base = disk.checkpoint_files(*old)
        answers = self._call_save(9, late, places, [base] * 4)
        self._check_order(group, 9, old)
        check_every_state(self, [answers[r][0] for r in group], base, old, (9, [late[r] for r in group]), group)
        at = self._observer.before_the_index(group, base) if self._observer else 0
        for broken in [*self.random.permutation(4).tolist(), None]:
            full = [-1] * 4 if broken is None else [4096 * (r == broken) for r in range(4)]
            what = "the index could not be written" if broken is None else f"rank {broken} could not write its file"
            try:
                self._call_save(9, late, places, [base] * 4, full=full, full_at=at * (broken is None))
            except RanksError as error:
                said = {r for who, told in error.groups for r in who if "DeadlockError" not in told["kind"]}
                if not said or broken not in (None, *said):
                    self.fail(
                        f"{what}, and it has raised no error; other ranks have waited: {error.short}", "an except that hides the error"
                    )
                self._check_order(group, 9, old)
                check_files(self, self._files_left(base, group), old, None, group, f"after {what}")
            else:
                self.fail(f"save has raised no error, although {what}", "an except that hides the error")
        return self

    @_cleans_up
    def load(self, size: int = 4, old: int = 4) -> CheckpointCheck:
        """Check loading a checkpoint of `old` ranks, among files of other steps, and a later one from the same folder.

        No rank may read a file that holds nothing for it.
        """
        groups, step = self.groups(size), int(self.random.integers(9, 900))
        self.case = f"{self.describe_groups(groups, np.float64)}, a checkpoint of {old} ranks"
        self._load(groups, step, old)
        self.case += ", and then a later one"
        self._load(groups, step + 7, old, again=True)
        self.covers("dtypes", "special values", "sizes", "group order", "group sizes", "repetition")
        self.covers("same ranks twice", "arguments", "results")
        if old > 16:
            self.covers("many ranks")
        return self

    def _load(self, groups: list[list[int]], step: int, old: int, again: bool = False) -> None:
        """Check loading; `again`, from the folder of the last load, and with the other groups idle."""
        places = self.colors_and_keys(groups)
        parts = disk.draw_shards(self.random, [list(range(old))], old)
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        files = disk.checkpoint_files(step, parts)
        others = disk.leftover_files(step + 1, old) | disk.leftover_files(step - 7, old)
        given, wants, needs = [], [], []
        for color, i in places:
            n = len(groups[color])
            cuts = {name: slice(i * -(-len(a) // n), (i + 1) * -(-len(a) // n)) for name, a in joined.items()}
            wants.append({name: array[cuts[name]] for name, array in joined.items()})
            needed = {name for name in files if disk.is_file_needed(name, step, parts, cuts)}
            given.append(others | {name: content if name in needed else content[:20] for name, content in files.items()})
            needs.append(needed)
        calls = [{"place": place, "idle": again and place[0] > 0, "twice": not again} for place in places]
        try:
            answers = self._call_load(given, calls, again=again)
        except RanksError as error:
            self._report_unneeded_read(error, [set(files) - needed for needed in needs])
            raise
        self._check_traffic("load", groups[:1] if again else groups, times=1 if again else 2)
        found = self._observer.files() if self._observer else self.ranks.call(read_own_folder, [{"name": name} for name in self._names])
        for r, (answer, want) in enumerate(zip(answers, wants, strict=True)):
            if self._observer:
                more = self._observer.opened(r) - needs[r]
                if more:
                    self.fail(f"load on rank {r} has opened {min(more)}, which holds nothing for it", limit=contract.OPENS)
            if not calls[r]["idle"]:
                self._check_loaded(answer, step, want, r, len(groups[places[r][0]]))
            if found[r].keys() != given[r].keys() or any(not np.array_equal(found[r][name], given[r][name]) for name in found[r]):
                self.fail(f"load on rank {r} has changed the folder", "files that it writes or removes")

    def _report_unneeded_read(self, error: RanksError, useless: list[set[str]]) -> None:
        """Name a file that load reads although it holds nothing for its rank; the check has made it unreadable there."""
        for ranks, told in error.groups:
            for r in ranks:
                if found := sorted(name for name in useless[r] if name in told["message"]):
                    problem = f"load on rank {r} reads {found[0]}, which holds nothing for it (the check has made it unreadable there)"
                    cause = "a loop over all files, or a c that is not rounded up; the index says how many numbers each file has"
                    self.fail(problem, cause, limit=contract.OPENS)

    @_cleans_up
    def damaged(self) -> CheckpointCheck:
        """Check that load rejects damaged checkpoints, naming the damaged file, and loads undamaged ones."""
        groups = [[0, 1, 2, 3]]
        parts, places = disk.draw_shards(self.random, groups, least=1), self.colors_and_keys(groups)
        files, most = disk.checkpoint_files(30, parts), int(np.argmax([sum(map(len, part.values())) for part in parts]))
        self.case = "four ranks, undamaged"
        calls = [dict(place=place) for place in places]
        self._call_load([files] * 4, calls)
        for name, content, what in disk.damaged_variants(files, f"30-{most}.safetensors"):
            self.case = f"four ranks, {name} {what}"
            given = {k: v for k, v in files.items() if k != name} | ({} if content is None else {name: content})
            try:
                answers = self._call_load([given] * 4, calls)
            except RanksError as error:
                kinds = {kind for who, told in error.groups for kind in told["kind"]}
                blamed = [other for other in files if other not in (name, disk.INDEX_FILE) and other in str(error)]
                if name not in str(error) or blamed or not {"ValueError", "FileNotFoundError"} & kinds:
                    problem = f"load must raise a ValueError or FileNotFoundError that names {name} and no other; it said: {error.short}"
                    self.fail(problem, "an error of safetensors or json that is passed on unchanged")
                if name == disk.INDEX_FILE and (silent := sorted(set(range(4)) - {r for who, _ in error.groups for r in who})):
                    self.fail(
                        f"load has raised no error on {wording.ranks(silent)}, although {name} {what}",
                        "one rank that checks the index for all",
                    )
            else:
                self.fail(f"load accepted a checkpoint whose {name} {what}, and gave {answers[0]!r}", "an except that hides the error")
        return self

    def _check_writes(self, answers: list, shards: list, group: list[int]) -> set[str]:
        """Check that a save leaves its input unchanged and no two ranks write the same file; return the other names ranks wrote."""
        for rank, (_, after, wrong, *_), given in zip(group, answers, shards, strict=True):
            if wrong:
                self.fail(f"save on rank {rank} {wrong[0][0]}", wrong[0][1])
            for name, array in given.items():
                if name not in after:
                    self.fail(f"save on rank {rank} has removed {name!r} from shards", "a pop from what was given")
                self.array(
                    after[name],
                    array,
                    name=f"shards[{name!r}], after save,",
                    rank=rank,
                    cause="a change to the given arrays",
                    signed_zeros=True,
                )
        wrote = [set(answer[3]) for answer in answers]
        for i, one in enumerate(wrote):
            for k, other in enumerate(wrote[:i]):
                if one & other:
                    both = wording.ranks(sorted((group[i], group[k])))
                    self.fail(f"{both} write {min(one & other)}", "a file's name without the rank, or an index from every rank")
        return {name for one in wrote for name in one if not name.endswith(disk.TENSORS_SUFFIX)}

    def _made_folders(self, answer: list, r: int) -> set[str]:
        """Return the names of the subfolders that a rank made in a save; a save that is interrupted leaves them."""
        if self._observer:
            return self._observer.made_folders(r)
        return {name for _, files, _ in answer[0] for name in files if name.endswith("/")}

    def _check_return(self, states: list, returned: dict[int, float | None]) -> None:
        """Check that no rank of a group returns from save while another still changes the folder, where that is traced from inside."""
        if None in returned.values():
            return
        changed, who = max((own[-1][0], rank) for own, rank in zip(states, returned, strict=True) if own)
        first = min(returned, key=returned.get)
        if first != who and returned[first] < changed:
            cause = "no Barrier after the old files have been removed"
            self.fail(f"save has returned on rank {first} while rank {who} still changes the folder", cause)

    def _removes(self, step: int, shards: list[dict], places: list, base: dict) -> None:
        """Check that save tolerates another rank removing the same files first."""
        for many in (100, 400, 1600):  # until another rank has been faster
            more = {f"{i}{TEMPORARY_SUFFIX}": np.empty(0, np.uint8) for i in range(many if self._observer else 0)}
            try:
                self._call_save(step, shards, places, [base | more] * 4, faster=[True] * 4)
            except RanksError as error:
                self.fail(f"several ranks remove the same files, and save fails if another rank has already removed one: {error.short}")
            if not self._observer or self._observer.faster:
                return

    def _check_loaded(self, answer: object, step: int, want: dict[str, np.ndarray], rank: int, n: int) -> None:
        """Check what load returns on a rank."""
        got_step, got = self.tuple(answer, 2, name="load", rank=rank)
        self.value(got_step, step, name="the step", rank=rank)
        if not isinstance(got, dict) or sorted(got) != sorted(want):
            received_keys = ", ".join(map(str, got)) if isinstance(got, dict) else type(got).__name__
            self.fail(f"load on rank {rank} must give a dict with {', '.join(want)}; got {received_keys}")
        for name, array in want.items():
            cause = f"parts for a number of ranks other than {n}: with c rounded up, rank r has the numbers from r * c to (r + 1) * c"
            cause += "; or what load has given before"
            part = f"the part of {name!r}"
            self.array(got[name], array, name=part, rank=rank, cause=cause, dtype=bool(array.size), signed_zeros=True)

    def _slow_places(self, size: int) -> list[int | None]:
        """Position of the slow rank in each of four saves; observed from outside, that is cheap, so every rank is slow once."""
        if self._isolated():
            return [int(place) % size for place in self.random.permutation(4)]
        return [None, 0, int(self.random.integers(1, size)), None]

    def _isolated(self) -> bool:
        """Tell whether ranks are isolated and the system reports file events (macOS, for example, does not)."""
        if self.ranks.share_a_disk:
            return False
        try:
            file_events.FileEvents().close()
        except OSError:
            return False
        return True

    def _write_folders(self, bases: list[dict], also: int = 0, again: bool = False) -> None:
        """Give each rank a new folder with these files; `again`, in the place of the last one."""
        self._remove_folders()
        if not again:
            name = f"checkpoint-{secrets.token_hex(8)}"
            self._names = [f"{name}-{r}" for r in range(4)]
        self.ranks.call(write_folder, [dict(name=name, files=base) for name, base in zip(self._names, bases, strict=True)])
        self._observer = FolderObserver(self, self.ranks.isolated, self._names, bases, also) if self._isolated() else None

    def _call_load(self, bases: list[dict], calls: list[dict], again: bool = False) -> list:
        """Load these files on the ranks, and return what load returned."""
        self._write_folders(bases, file_events.IN_OPEN, again)
        try:
            return self.ranks.call(call_load, [dict(name=n, **call) for n, call in zip(self._names, calls, strict=True)], show=self.show)
        finally:
            self._stop_observing()

    def _call_save(
        self, step: int, shards: list[dict], places: list, bases: list[dict], *, hangs: Sequence[str] = (), full_at: int = 0, **how: list
    ) -> list:
        """Prepare the ranks' folders and call save on all of them; `how` holds, per rank, the options of `FileTracer`.

        Observed from outside, `hangs` names files that a rank dying before a write cannot open; `full_at` as in `FolderObserver.turns`.
        """
        self._write_folders(bases)
        each = dict(slow=[False] * 4, dies=[0] * 4, faster=[False] * 4, full=[0] * 4, idle=[False] * 4) | how
        given = [
            {
                "name": self._names[r],
                "step": step,
                "shards": shards[r],
                "place": places[r],
                "layout": str(self.random.choice(CONTIGUOUS)),
                "idle": each["idle"][r],
            }
            for r in range(4)
        ]
        if not self._observer:
            more = [{name: values[r] for name, values in each.items()} for r in range(4)]
            return self.ranks.call(call_save_traced, [one | other for one, other in zip(given, more, strict=True)], show=self.show)
        outside, broker = self._observer, self.ranks.isolated.broker
        ends = [r for r in range(4) if each["dies"][r]]
        order = sorted(range(4), key=lambda r: (each["dies"][r] != 0, each["slow"][r], places[r]))
        stop = (ends[0], each["dies"][ends[0]]) if ends else None
        pipes = hangs if stop and stop[1] < 0 else ()
        thread = outside.start_race({name for name in bases[0] if name.endswith(TEMPORARY_SUFFIX)}) if any(each["faster"]) else None
        try:
            turns = outside.turns(order, stop=stop, pipes=pipes, full_at=full_at)
            for folder, most in zip(outside.folders, each["full"], strict=True):
                if most > 0:
                    folder.limit_file_size(most)
            broker.set_scheduler(None if thread else turns)
            after = self.ranks.call(call_save, given, show=self.show)
        finally:
            broker.set_scheduler(None)
            if thread:
                outside.end_race(thread)
            self._stop_observing()
        return [
            (outside.states(r), after[r], [], sorted(outside.wrote(r)), sorted(outside.removed(r)), turns.released[r], None)
            for r in range(4)
        ]

    def _stop_observing(self) -> None:
        """Stop observing the last call; its observations stay."""
        if self._observer:
            self._observer.snapshot()
            self._observer.close()

    def _check_order(self, group: list[int], step: int, before: tuple | None, ended: bool = False) -> None:
        if self._observer:
            self._observer.in_order(group, step, before[0] if before else None, ended)

    def _files_left(self, base: dict, group: list[int]) -> dict:
        """Files of the folder that the group's ranks would share, as of now."""
        own = [dict(name=name) for name in self._names]
        found = self._observer.left or self._observer.files() if self._observer else self.ranks.call(read_own_folder, own)
        return merge_folders(self, base, [found[r] for r in group], group)

    def _remove_folders(self) -> None:
        if self._names:
            self.ranks.call(remove_folder, [{"name": name} for name in self._names])
