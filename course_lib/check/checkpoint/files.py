"""Write, read and damage part 27's checkpoint files for the check; see `checkpoint.check`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from safetensors import numpy

from course_lib.check.cases.values import place_special, special_values

INDEX_FILE, TENSORS_SUFFIX = "index.json", ".safetensors"
TENSOR_NAMES = ("weights", "bias", "first moment", "second moment", "order of the data", "mask", "0.scale", "losses")
TENSOR_DTYPES = (np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_)

Files = dict[str, np.ndarray]  # name to bytes
IN_PLACE_WRITE_CAUSE = "a file that is changed in place: write a temporary file next to it, then use os.replace"


class DamagedCheckpoint(ValueError):
    """The files are not a valid checkpoint; the message says why."""


def draw_shards(
    random: np.random.Generator, groups: list[list[int]], ranks: int = 4, *, large: bool = False, least: int = 0
) -> list[dict[str, np.ndarray]]:
    """Draw each rank's parts: one array per dtype, so that corrupting any dtype is always detected; lengths may be 0."""
    found: list[dict] = [{} for _ in range(ranks)]
    names = random.permutation(TENSOR_NAMES)[: len(TENSOR_DTYPES)].tolist()
    for name, dtype in zip(names, random.permutation(TENSOR_DTYPES), strict=True):
        for group in groups:
            lengths = random.integers(least, 6, len(group)) + (3000 if large else 0)
            if len(group) > 1 and not least and not large:
                lengths[int(random.integers(0, len(group) - 1))] = 0  # not the last one, whose file loads may skip
            for r, length in zip(group, lengths, strict=True):
                found[r][name] = _draw_values(random, int(length), dtype)
    return found


def _draw_values(random: np.random.Generator, length: int, dtype: type) -> np.ndarray:
    """Draw values of this dtype, up to half of them special; 64-bit values use more digits than narrower types can hold."""
    if np.issubdtype(dtype, np.integer):
        return random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, length, dtype)
    if dtype == np.bool_:
        return random.random(length) < 0.5
    values = (100 * random.standard_normal(length)).astype(dtype)
    place_special(values, random, int(random.integers(len(special_values(dtype)))))
    return values


def checkpoint_files(step: int, parts: list[dict[str, np.ndarray]]) -> Files:
    """Files of a checkpoint, given each rank's parts."""
    lengths = {name: [len(part[name]) for part in parts] for name in parts[0]}
    found = {INDEX_FILE: _as_array(json.dumps({"step": step, "ranks": len(parts), "lengths": lengths}).encode())}
    for i, part in enumerate(parts):
        found[f"{step}-{i}.safetensors"] = _as_array(numpy.save(part))
    return found


def read_checkpoint(files: Files) -> tuple[int, list[dict[str, np.ndarray]]]:
    """Read the step and each rank's parts.

    Raises
    ------
    DamagedCheckpoint
        A file is missing, truncated, or inconsistent with the index.
    """
    try:
        index = json.loads(files[INDEX_FILE].tobytes())
        step, ranks, lengths = index["step"], index["ranks"], index["lengths"]
        whole = [step, ranks, *(length for each in lengths.values() for length in each)]
    except KeyError as error:
        raise DamagedCheckpoint(f"{INDEX_FILE} is missing, or has no {error}") from None
    except Exception as error:  # whatever a rank wrote there
        raise DamagedCheckpoint(f"{INDEX_FILE} is not the expected JSON ({error})") from None
    wrong = [value for value in whole if type(value) is not int]
    if wrong:
        raise DamagedCheckpoint(f"{INDEX_FILE} has {json.dumps(wrong[0])} where a whole number is expected")
    found = []
    for i in range(min(ranks, 64)):
        name = f"{step}-{i}.safetensors"
        if name not in files:
            raise DamagedCheckpoint(f"{INDEX_FILE} lists {name}, which is missing")
        try:
            found.append(numpy.load(files[name].tobytes()))
        except Exception as error:  # as above
            raise DamagedCheckpoint(f"{name} is incomplete ({error})") from None
        has, says = {key: len(array) for key, array in found[i].items()}, {key: each[i : i + 1] for key, each in lengths.items()}
        if {key: [length] for key, length in has.items()} != says:
            raise DamagedCheckpoint(f"{INDEX_FILE} gives rank {i} the lengths {says}, but {name} has {has}")
    if any(len(each) != len(found) for each in lengths.values()):
        raise DamagedCheckpoint(f"{INDEX_FILE} lists {ranks} ranks, but has the lengths {lengths}")
    return step, found


def merge_folders(base: Files, ranks: list[Files]) -> Files | str:
    """Merge the ranks' folders, which all started from `base`; return the name of a file that two ranks wrote, if there is one."""
    found = {name: content for name, content in base.items() if all(name in own for own in ranks)}
    new: Files = {}
    for own in ranks:
        for name, content in own.items():
            if name in base and np.array_equal(content, base[name]):
                continue
            if name in new and not np.array_equal(new[name], content):
                return name
            new[name] = content
    return found | new


def leftover_files(step: int, ranks: int) -> Files:
    """Return files that interrupted saves may leave.

    They are truncated files of this step, also of more ranks; files of steps whose number begins
    or ends like this one; complete files of a later step; and temporary ones.
    """
    half = checkpoint_files(step, [{"weights": np.arange(40.0)} for _ in range(ranks + 2)])
    later = checkpoint_files(step + 5, [{"weights": np.arange(3.0)} for _ in range(6)])
    found = {name: content[:100] for name, content in half.items() if name != INDEX_FILE}
    part = found[f"{step}-0{TENSORS_SUFFIX}"]
    similar = (f"1{step}-0", f"{step}0-0", f"{step}-10", f"{step}-{ranks}0", f"0{step}-0")
    found |= {name + TENSORS_SUFFIX: part for name in similar}
    found |= {f"{step}-0{TENSORS_SUFFIX}.tmp": part, "index.new": _as_array(b'{"step"'), "list.tmp": _as_array(b"")}
    return found | {name: content for name, content in later.items() if name != INDEX_FILE}


def is_file_needed(name: str, step: int, parts: list[dict[str, np.ndarray]], cuts: dict[str, slice]) -> bool:
    """Tell whether a file holds any of these slices."""
    if name == INDEX_FILE:
        return True
    i = int(name.removeprefix(f"{step}-").removesuffix(".safetensors"))
    for tensor, cut in cuts.items():
        begin = sum(len(part[tensor]) for part in parts[:i])
        if max(begin, cut.start) < min(begin + len(parts[i][tensor]), cut.stop):
            return True
    return False


def damaged_variants(files: Files, name: str) -> Iterator[tuple[str, np.ndarray | None, str]]:
    """Yield the ways to damage the index and a file: the name, its new bytes (None: removed), and a description."""
    for which in (INDEX_FILE, name):
        yield which, None, "is missing"
        yield which, files[which][: len(files[which]) // 2], "is cut short"
        yield which, files[which][:0], "is empty"
        yield which, np.zeros_like(files[which]), "is all zeros, as after a power failure"
    for text in (b"{}", b"[]", b"null", b"\xff\xfe"):
        yield INDEX_FILE, _as_array(text), f"is {text!r}"
    yield name, files[name][:-8], "lacks its last 8 bytes"
    arrays = numpy.load(files[name].tobytes())
    longest = max(arrays, key=lambda key: len(arrays[key]))
    yield name, _as_array(numpy.save({key: a for key, a in arrays.items() if key != longest})), f"has no array {longest!r}"
    yield (
        name,
        _as_array(numpy.save({key: a[:-1] if key == longest else a for key, a in arrays.items()})),
        f"has an array {longest!r} that is too short",
    )


def _as_array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)
