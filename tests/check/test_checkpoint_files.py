"""Checkpoints as files, and a training run that is broken off and goes on."""

import os
import sys

import numpy as np
import psutil
import pytest

from course_lib import cluster
from course_lib.check.checkpoint import files as disk
from course_lib.cluster.isolated import file_events
from course_lib.cluster.isolated.scheduler import RankScheduler
from course_lib.collectives.coordination.coordinator import Coordinator

PARTS = [{"a": np.arange(3.0), "b": np.arange(2)}, {"a": np.arange(0.0), "b": np.arange(5)}]


def test_what_was_written_is_read():
    step, found = disk.read_checkpoint(disk.checkpoint_files(4, PARTS))
    assert step == 4 and [len(part["a"]) for part in found] == [3, 0]
    for part, other in zip(PARTS, found, strict=True):
        assert all(np.array_equal(part[name], other[name]) and part[name].dtype == other[name].dtype for name in part)


def test_every_damage_is_seen():
    files = disk.checkpoint_files(4, PARTS)
    for name, content, _ in disk.damaged_variants(files, "4-1.safetensors"):
        broken = {k: v for k, v in files.items() if k != name} | ({} if content is None else {name: content})
        with pytest.raises(disk.DamagedCheckpoint, match=name):
            disk.read_checkpoint(broken)
    for text in ("[]", '{"step": 4}', '{"step": [], "ranks": 1, "lengths": {}}'):
        with pytest.raises(disk.DamagedCheckpoint, match="index"):
            disk.read_checkpoint(files | {disk.INDEX_FILE: np.frombuffer(text.encode(), np.uint8)})


def test_folders_of_several_ranks_are_put_together_as_one():
    old, new, index = (np.frombuffer(text, np.uint8) for text in (b"old", b"new", b"index"))
    base = {"a": old, "b": old}
    assert disk.merge_folders(base, [{"b": old, "c": new}, {"a": old, "b": old}]).keys() == {"b", "c"}
    assert np.array_equal(disk.merge_folders(base, [{"a": index, "b": old}, base])["a"], index)
    assert disk.merge_folders(base, [base | {"c": new}, base | {"c": index}]) == "c"


def test_a_file_is_needed_by_those_that_get_something_of_it():
    whole = {"a": slice(0, 3), "b": slice(0, 0)}
    assert disk.is_file_needed(disk.INDEX_FILE, 4, PARTS, whole) and disk.is_file_needed("4-0.safetensors", 4, PARTS, whole)
    assert not disk.is_file_needed("4-1.safetensors", 4, PARTS, whole)
    assert disk.is_file_needed("4-1.safetensors", 4, PARTS, whole | {"b": slice(6, 7)})


@pytest.mark.slow
def test_ranks_come_up_again_in_another_number():
    ranks = cluster.start(2)
    try:
        ranks.run("import numpy as np\nfrom course_lib.collectives import Communicator\neveryone = Communicator()")
        ranks.run("def size():\n    return everyone.Get_size()")
        ranks.restart(rerun=True, n=3)
        assert ranks.call("size") == [3, 3, 3]
    finally:
        ranks.stop()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_the_system_tells_of_all_changes_in_one_order(tmp_path):
    events = file_events.FileEvents()
    for name in "ab":
        (tmp_path / name).mkdir()
    folders = [file_events.TracedFolder(str(tmp_path / name), psutil.Process()) for name in "ab"]
    watches = {events.watch(folder.descriptor, file_events.CHANGE_EVENTS): name for folder, name in zip(folders, "ab", strict=True)}
    (tmp_path / "a/new").write_text("1")
    (tmp_path / "b/x").write_text("2")
    os.replace(tmp_path / "a/new", tmp_path / "a/x")
    os.remove(tmp_path / "b/x")
    found = [(watches[event.watch], event.name, event.mask) for event in events.read()]
    made, changed = file_events.IN_CREATE, file_events.IN_MODIFY
    assert found[:4] == [("a", "new", made), ("a", "new", changed), ("b", "x", made), ("b", "x", changed)]
    assert found[4:] == [("a", "new", file_events.IN_MOVED_FROM), ("a", "x", file_events.IN_MOVED_TO), ("b", "x", file_events.IN_DELETE)]
    os.symlink("/etc/passwd", tmp_path / "a/link")
    assert folders[0].files()[0].keys() == {"x", "link@"}  # no link is followed
    for opened in (events, *folders):
        opened.close()


def test_one_rank_at_a_time_goes_on():
    coordinator, moments = Coordinator(2), []
    turns = RankScheduler([1, 0], moments.append, max_run_seconds=60)
    turns.hold(0, {"request": 1}, b"")
    assert not turns.next_frames(coordinator)  # the other one is not asked yet
    turns.hold(1, {"request": 1}, b"")
    assert [rank for rank, *_ in turns.next_frames(coordinator)] == [1] and not turns.next_frames(coordinator)
    turns.frame_received(1, {"reply": 1})
    assert [rank for rank, *_ in turns.next_frames(coordinator)] == [0] and moments == [1, 2]
