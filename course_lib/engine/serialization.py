"""Serialize what a rank sends as plain data: JSON and the bytes of arrays, never a pickle.

A rank runs code that a student wrote. Unpickling what it sends would run its code here; so
only numbers, texts, arrays of numbers and containers of these come through.
"""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import dataclass

import numpy as np

_KINDS = "biufc"
_DTYPE = re.compile(rf"[<>|=][{_KINDS}]\d{{1,2}}")
MAX_DIMENSIONS = 64
MAX_EMPTY_PRODUCT = 1 << 26  # product of an empty array's other dimensions: a sum over the empty one has as many numbers
# Numbers can be chosen so that they meet in a dict, and each then takes as long as there are others; texts are hashed with a secret.
MAX_NON_STRING_KEYS, MAX_KEY_TUPLE = 100, 8  # keys of a dict that are no texts, and members of one that is a tuple


@dataclass(frozen=True)
class Opaque:
    """Stands for a value that has no plain form, such as a function or a communicator."""

    description: str

    def __repr__(self) -> str:
        return self.description


def encode(value: object, depth: int = 0) -> object:
    """A form of `value` for `dumps` and `parts`; anything that has none becomes an `Opaque`."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return {"scalar": encode(np.asarray(value))}
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        layout = "C" if value.flags.c_contiguous else "view"
        data = ArrayBytes(np.ascontiguousarray(value).tobytes())  # a copy, of this moment; see `dumps` and `parts`
        return {"array": data, "dtype": value.dtype.str, "shape": list(value.shape), "layout": layout}
    if type(value) in (tuple, list) and depth < 20:
        return {type(value).__name__: [encode(v, depth + 1) for v in value]}
    if type(value) is dict and depth < 20:
        return {"dict": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]}
    return {"opaque": f"<{type(value).__name__}>"}


@dataclass(frozen=True)
class ArrayBytes:
    """The bytes of an array."""

    data: bytes


class TrailingBytes:
    """The bytes behind a text, see `parts`; each is taken once, so that no short text can ask for much memory."""

    def __init__(self, data: bytes | bytearray | memoryview = b""):
        self._left = memoryview(data)

    def take(self, count: int) -> memoryview:
        """The next bytes, so many."""
        if type(count) is not int or not 0 <= count <= len(self._left):
            raise ValueError(f"{str(count)[:40]} bytes did not come from a rank")
        taken, self._left = self._left[:count], self._left[count:]
        return taken


def decode(data: object, rest: bytes | bytearray | memoryview = b"") -> object:
    """The value that `encode` was given.

    Parameters
    ----------
    data : object
    rest : bytes
        What came behind the text, see `parts`.

    Raises
    ------
    ValueError
        `data` is not what `encode` makes.
    """
    try:
        return _decode(data, TrailingBytes(rest))
    except (OverflowError, TypeError, LookupError, RecursionError, MemoryError) as error:  # a student may write any number or shape
        raise ValueError(f"not a value from a rank: {type(error).__name__}") from None


def _decode(data: object, rest: TrailingBytes) -> object:
    if data is None or type(data) in (bool, int, str):
        return data
    if not isinstance(data, dict):
        raise ValueError(f"not a value from a rank: {str(data)[:80]}")
    if "float" in data:
        return float.fromhex(str(data["float"])[:40])  # what `hex` writes is shorter, and millions of digits take minutes
    if "scalar" in data:
        return _decode(data["scalar"], rest)[()]
    if "array" in data:
        if not _DTYPE.fullmatch(str(data["dtype"])[:40]):
            raise ValueError(f"dtype {str(data['dtype'])[:40]} cannot come from a rank")
        dtype, shape = np.dtype(data["dtype"]), data["shape"]
        sound = len(shape) <= MAX_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
        if not sound or (0 in shape and math.prod(filter(None, shape)) > MAX_EMPTY_PRODUCT):
            raise ValueError(f"shape {str(shape)[:80]} cannot come from a rank")
        plain = rest.take(data["array"]) if type(data["array"]) is int else base64.b64decode(data["array"])
        if len(plain) != dtype.itemsize * math.prod(shape):
            raise ValueError(f"{len(plain):,} bytes for an array of {dtype} of shape {str(shape)[:80]} cannot come from a rank")
        array = np.frombuffer(plain, dtype).reshape(shape).copy()
        return array if data.get("layout") == "C" else _scattered(array)
    if "tuple" in data:
        return tuple(_decode(v, rest) for v in data["tuple"])
    if "list" in data:
        return [_decode(v, rest) for v in data["list"]]
    if "dict" in data:
        pairs = [(_key(k, rest), _decode(v, rest)) for k, v in data["dict"]]
        if sum(type(key) is not str for key, _ in pairs) > MAX_NON_STRING_KEYS:
            return Opaque(f"<dict with {len(pairs):,} keys, more than {MAX_NON_STRING_KEYS} of which are no texts>")
        return dict(pairs)
    return Opaque(str(data.get("opaque", "<unknown>")))


def _key(data: object, rest: TrailingBytes) -> object:
    """A key of a dict; not a tuple of many members, or of tuples, as two of these take long to compare."""
    key = _decode(data, rest)
    if type(key) is tuple and (len(key) > MAX_KEY_TUPLE or any(type(part) is tuple for part in key)):
        raise ValueError(f"a key of {len(key)} members, or with tuples inside, cannot come from a rank")
    return key


def _scattered(array: np.ndarray) -> np.ndarray:
    """The same array, not C-contiguous, as it was on its rank."""
    room = np.empty((*array.shape, 2), array.dtype)
    room[..., 0] = array
    return room[..., 0]


def dumps(reply: dict) -> str:
    """JSON text on one line, ASCII only."""
    return json.dumps(reply, default=lambda found: base64.b64encode(_bytes(found)).decode())


def parts(reply: dict) -> list[bytes]:
    """JSON text, and behind it the bytes of its arrays as they are, in their order; in the text stand their lengths."""
    arrays: list[bytes] = []

    def length(found: object) -> int:
        arrays.append(_bytes(found))
        return len(arrays[-1])

    return [json.dumps(reply, default=length).encode(), *arrays]


def _bytes(found: object) -> bytes:
    if type(found) is not ArrayBytes:
        raise TypeError(f"{type(found).__name__} has no form as JSON")
    return found.data


def loads(text: str | bytes | bytearray) -> dict:
    """The dict in a rank's JSON text."""
    reply = json.loads(text)
    if not isinstance(reply, dict):
        raise ValueError("a rank's reply is not a dict")
    return reply
