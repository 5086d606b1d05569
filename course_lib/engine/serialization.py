"""Serialization of a rank's replies as plain data: JSON and the bytes of arrays, never a pickle.

A rank runs student code, and unpickling data from it could run that code here. So only numbers,
strings, arrays of numbers, and containers of these are transferred.
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
MAX_EMPTY_PRODUCT = 1 << 26  # product of an empty array's nonzero dimensions: summing over the empty one gives as many elements
# Numbers can be chosen to collide in a dict, which makes building it quadratic; the hash of a str is randomized.
MAX_NON_STRING_KEYS, MAX_KEY_TUPLE = 100, 8  # non-str keys of a dict; members of a tuple as a key


@dataclass(frozen=True)
class Opaque:
    """Placeholder for a value without a plain form, such as a function or a communicator."""

    description: str

    def __repr__(self) -> str:
        return self.description


def encode(value: object, depth: int = 0) -> object:
    """Encode a value for `dumps` or `parts`; anything without a plain form will be decoded as an `Opaque`.

    Parameters
    ----------
    value : object
    depth : int
        Nesting depth; containers deeper than 20 levels are opaque.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return {"scalar": encode(np.asarray(value))}
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        layout = "C" if value.flags.c_contiguous else "view"
        data = ArrayBytes(np.ascontiguousarray(value).tobytes())  # a copy: the array may change before it is sent
        return {"array": data, "dtype": value.dtype.str, "shape": list(value.shape), "layout": layout}
    if type(value) in (tuple, list) and depth < 20:
        return {type(value).__name__: [encode(v, depth + 1) for v in value]}
    if type(value) is dict and depth < 20:
        return {"dict": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]}
    return {"opaque": f"<{type(value).__name__}>"}


@dataclass(frozen=True)
class ArrayBytes:
    """The bytes of an array, before `dumps` or `parts` encodes them."""

    data: bytes


class TrailingBytes:
    """The bytes that follow the JSON text, see `parts`; each can be taken only once, so a short text cannot demand much memory."""

    def __init__(self, data: bytes | bytearray | memoryview = b""):
        self._left = memoryview(data)

    def take(self, count: int) -> memoryview:
        """Return the next `count` bytes."""
        if type(count) is not int or not 0 <= count <= len(self._left):
            raise ValueError(f"{str(count)[:40]} bytes did not come from a rank")
        taken, self._left = self._left[:count], self._left[count:]
        return taken


def decode(data: object, rest: bytes | bytearray | memoryview = b"") -> object:
    """Decode a value; the inverse of `encode`.

    Parameters
    ----------
    data : object
        The parsed JSON.
    rest : bytes
        The bytes that followed the JSON text, see `parts`.

    Raises
    ------
    ValueError
        `data` is not the output of `encode`.
    """
    try:
        return _decode(data, TrailingBytes(rest))
    except (OverflowError, TypeError, LookupError, RecursionError, MemoryError) as error:  # the data may be hostile: any number or shape
        raise ValueError(f"not a value from a rank: {type(error).__name__}") from None


def _decode(data: object, rest: TrailingBytes) -> object:
    if data is None or type(data) in (bool, int, str):
        return data
    if not isinstance(data, dict):
        raise ValueError(f"not a value from a rank: {str(data)[:80]}")
    if "float" in data:
        return float.fromhex(str(data["float"])[:40])  # `hex` writes less; parsing millions of digits takes minutes
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
            return Opaque(f"<dict with {len(pairs):,} keys, more than {MAX_NON_STRING_KEYS} of which are not strings>")
        return dict(pairs)
    return Opaque(str(data.get("opaque", "<unknown>")))


def _key(data: object, rest: TrailingBytes) -> object:
    """Decode a key of a dict; long or nested tuples are refused, as comparing two of them takes long."""
    key = _decode(data, rest)
    if type(key) is tuple and (len(key) > MAX_KEY_TUPLE or any(type(part) is tuple for part in key)):
        raise ValueError(f"a key of {len(key)} members, or with tuples inside, cannot come from a rank")
    return key


def _scattered(array: np.ndarray) -> np.ndarray:
    """Return a copy that is not C-contiguous, as the array on its rank was not."""
    room = np.empty((*array.shape, 2), array.dtype)
    room[..., 0] = array
    return room[..., 0]


def dumps(reply: dict) -> str:
    """Encode a reply as JSON, ASCII on one line, with arrays in base64."""
    return json.dumps(reply, default=lambda found: base64.b64encode(_bytes(found)).decode())


def parts(reply: dict) -> list[bytes]:
    """Encode a reply as JSON, followed by the bytes of its arrays in order; the JSON text has their lengths."""
    arrays: list[bytes] = []

    def length(found: object) -> int:
        arrays.append(_bytes(found))
        return len(arrays[-1])

    text = json.dumps(reply, default=length, separators=(",", ":"))
    return [text.encode(), *arrays]


def _bytes(found: object) -> bytes:
    if type(found) is not ArrayBytes:
        raise TypeError(f"{type(found).__name__} cannot be written as JSON")
    return found.data


def loads(text: str | bytes | bytearray) -> dict:
    """Parse a rank's JSON text; ValueError if it is not a dict."""
    reply = json.loads(text)
    if not isinstance(reply, dict):
        raise ValueError("a rank's reply is not a dict")
    return reply
