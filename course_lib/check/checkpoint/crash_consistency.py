"""Check that the disk holds a complete checkpoint at every moment of a save; see `checkpoint.check`."""

from __future__ import annotations

import numpy as np

from course_lib.check import Check
from course_lib.check.checkpoint import contract
from course_lib.check.checkpoint import files as disk
from course_lib.utils import wording

Checkpoint = tuple[int, list[dict[str, np.ndarray]]]  # the step, and each rank's parts


def check_every_state(
    check: Check, states: list, base: disk.Files, before: Checkpoint | None, want: Checkpoint, group: list[int]
) -> disk.Files:
    """Check that at every moment of a save the disk holds the old checkpoint or the new one; return the files at the end.

    Parameters
    ----------
    check : Check
        The check that fails.
    states : list
        For each rank of the group, see `FileTracer.states`.
    base : dict
        The files at the start.
    before : (int, list of dict) or None
        The checkpoint among them.
    want : (int, list of dict)
        The one being saved.
    group : list of int
    """
    now, reached, (step, parts) = [base for _ in group], False, want
    stamps: list = [None] * len(group)
    for _, i, files, stamp in sorted(
        ((when, i, *rest) for i, own in enumerate(states) for when, *rest in own), key=lambda state: state[:2]
    ):
        name = f"{step}-{i}{disk.TENSORS_SUFFIX}"
        for other in range(len(group)):
            theirs = f"{step}-{other}{disk.TENSORS_SUFFIX}"
            if other != i and theirs in files and not np.array_equal(files[theirs], base.get(theirs)):
                check.fail(f"rank {group[i]} writes {theirs}, the file of rank {group[other]}", "one rank that writes for the others")
            lost = other != i and theirs in now[i] and theirs not in files  # a file of this name left by an earlier save
            if lost and theirs in now[other] and not np.array_equal(now[other][theirs], base.get(theirs)):
                cause = "a list of files to keep that contains only this rank's own file: all ranks share the folder"
                check.fail(f"rank {group[i]} removes {theirs}, which rank {group[other]} has just written", cause)
        if reached and stamp.get(name) != stamps[i]:
            check.fail(f"{name} changes after the index lists it", "a file that is written again, or renamed too late")
        now[i], stamps[i] = files, stamp.get(name)
        merged = merge_folders(check, base, now, group)
        reached = check_files(check, merged, want, None if reached else (before or "none"), group, "at one moment of save") or reached
    check_files(check, merged, want, None, group, "after save")
    expected = {disk.INDEX_FILE, *(f"{step}-{i}{disk.TENSORS_SUFFIX}" for i in range(len(parts)))}
    if set(merged) != expected:
        more, less = sorted(set(merged) - expected), sorted(expected - set(merged))
        said = f"there is {', '.join(more)}, too" if more else f"{', '.join(less)} is missing"
        cause = "files of an earlier checkpoint, or of an interrupted save, that nobody has removed"
        check.fail(f"after save, {said}", cause, limit=contract.ONLY_THIS)
    return merged


def merge_folders(check: Check, base: disk.Files, now: list[disk.Files], group: list[int]) -> disk.Files:
    """Files of the folder that the group's ranks would share."""
    merged = disk.merge_folders(base, now)
    if isinstance(merged, str):
        both = [rank for rank, own in zip(group, now, strict=True) if merged in own and not np.array_equal(own[merged], base.get(merged))]
        check.fail(f"{wording.ranks(sorted(both))} write {merged}", "a file's name without the rank, or an index from every rank")
    return merged


def check_files(check: Check, files: disk.Files, want: Checkpoint, other: Checkpoint | str | None, group: list[int], when: str) -> bool:
    """Tell whether the files are the checkpoint `want`; if not, they must be the `other` one ("none": no index)."""
    if other == "none" and disk.INDEX_FILE not in files:
        return False
    try:
        step, found = disk.read_checkpoint(files)
    except disk.DamagedCheckpoint as broken:
        cause = "an index that is written before all ranks have written their files, or written in place; or old files removed too soon"
        cause = "the lengths of one rank only, or in the wrong order" if "the lengths" in str(broken) else cause
        check.fail(f"{when}, the disk holds no complete checkpoint: {broken}", cause, limit=contract.ALWAYS_COMPLETE)
    for right, (number, parts) in ((True, want), *([(False, other)] if isinstance(other, tuple) else [])):
        if step == number and len(found) == len(parts) and all(_same_tensors(*both) for both in zip(found, parts, strict=True)):
            return right
    cause = "parts of the wrong step or rank, or of the wrong dtype"
    check.fail(f"{when}, the checkpoint on the disk (step {step}, {len(found)} ranks) is not the one that was saved", cause)
    return False


def _same_tensors(found: dict[str, np.ndarray], part: dict[str, np.ndarray]) -> bool:
    return found.keys() == part.keys() and all(
        found[name].dtype == array.dtype and found[name].tobytes() == array.tobytes() for name, array in part.items()
    )
