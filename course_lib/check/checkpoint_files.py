"""Part 27's checkpoints as files: written, read and damaged by the one who checks; see `checkpoint`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from safetensors import numpy

INDEX = "index.json"

Files = dict[str, np.ndarray]  # by name, their bytes


class Broken(ValueError):
    """The files are no checkpoint; the message says why."""


def written(step: int, parts: list[dict[str, np.ndarray]]) -> Files:
    """The files of a checkpoint, for each rank its parts."""
    lengths = {name: [len(part[name]) for part in parts] for name in parts[0]}
    found = {INDEX: _bytes(json.dumps({"step": step, "ranks": len(parts), "lengths": lengths}).encode())}
    for i, part in enumerate(parts):
        found[f"{step}-{i}.safetensors"] = _bytes(numpy.save(part))
    return found


def read(files: Files) -> tuple[int, object, list[dict[str, np.ndarray]]]:
    """Step, lengths, and each rank's parts.

    Raises
    ------
    Broken
        A file is not there, or not whole.
    """
    try:
        index = json.loads(files[INDEX].tobytes())
        step, ranks, lengths = int(index["step"]), int(index["ranks"]), index["lengths"]
    except KeyError as error:
        raise Broken(f"{INDEX} is not there, or says nothing of {error}") from None
    except Exception as error:  # whatever a rank has written there
        raise Broken(f"{INDEX} is no such JSON ({error})") from None
    found = []
    for i in range(min(ranks, 64)):
        name = f"{step}-{i}.safetensors"
        if name not in files:
            raise Broken(f"{INDEX} tells of {name}, which is not there")
        try:
            found.append(numpy.load(files[name].tobytes()))
        except Exception as error:  # as above
            raise Broken(f"{name} is not whole ({error})") from None
    return step, lengths, found


def together(base: Files, ranks: list[Files]) -> Files | str:
    """What is in a folder that had `base`, if the ranks do there what each did in its own; or the name of a file that two have written."""
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


def needed(name: str, step: int, parts: list[dict[str, np.ndarray]], cuts: dict[str, slice]) -> bool:
    """Whether a file has something of these cuts."""
    if name == INDEX:
        return True
    i = int(name.removeprefix(f"{step}-").removesuffix(".safetensors"))
    for tensor, cut in cuts.items():
        begin = sum(len(part[tensor]) for part in parts[:i])
        if max(begin, cut.start) < min(begin + len(parts[i][tensor]), cut.stop):
            return True
    return False


def damages(files: Files, name: str) -> Iterator[tuple[str, np.ndarray | None, str]]:
    """Ways in which the index and a file can be damaged: which, its bytes then (None: it is gone), and what that is in words."""
    yield INDEX, None, "is not there"
    yield INDEX, files[INDEX][: len(files[INDEX]) // 2], "is cut off"
    yield name, None, "is not there"
    yield name, files[name][: len(files[name]) // 2], "is cut off"


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)
