"""The pictures that a rank shows: PNG and JPEG of bounded size. A small file may unpack to gigabytes in the browser that shows it.

The size stands in a picture's header, which is read here without unpacking anything. Whatever a decoder might read in another way is
refused: a second header, bytes between the segments, an end that is missing.
"""

from __future__ import annotations

import base64
import struct

BEGINS = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
LARGEST, LONGEST = 25_000_000, 20_000  # pixels of a picture, and of a side
TOGETHER = 100_000_000  # pixels of all pictures in one notebook
PIECES, SCANS = 10_000, 100  # chunks or segments of a picture; a JPEG's scans, each of which is drawn over the whole picture
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # a JPEG's markers that say its size


class NotShown(ValueError):
    """A picture is not shown; the message says why."""


def kept(data: dict, most: int = LARGEST) -> tuple[dict, int]:
    """An output's data without the pictures that are not shown, and the pixels of the others.

    Parameters
    ----------
    data : dict
        By MIME type, as in a notebook. Where no picture is left, a sentence says why.
    most : int
        Pixels that there still is room for.
    """
    found, total, why = {kind: value for kind, value in data.items() if kind not in BEGINS}, 0, ""
    for kind in (kind for kind in BEGINS if kind in data):
        try:
            size = pixels(kind, data[kind])
            if total + size > most:
                raise NotShown(f"one more picture, of {size:,} pixels, is too much: expected at most {most:,} more in this notebook")
        except NotShown as problem:
            why = str(problem)
            continue
        found[kind], total = data[kind], total + size
    if why and not total:
        found["text/plain"] = f"(not shown: {why})"
    return found, total


def pixels(kind: str, data: object) -> int:
    """The number of a picture's pixels.

    Parameters
    ----------
    kind : str
        "image/png" or "image/jpeg".
    data : str
        In base64.

    Raises
    ------
    NotShown
        It is no such picture, too large, or animated.
    """
    name = kind.removeprefix("image/").upper()
    try:
        content = base64.b64decode(data.replace("\n", ""), validate=True)
        if not content.startswith(BEGINS[kind]):
            raise ValueError
        width, height = (_png if name == "PNG" else _jpeg)(content)
    except NotShown:
        raise
    except (AttributeError, ValueError, struct.error):
        raise NotShown(f"expected a whole {name}, got something else") from None
    if width * height > LARGEST or max(width, height) > LONGEST:
        most = f"at most {LARGEST:,} pixels, and {LONGEST:,} on a side"
        raise NotShown(f"a picture of {width:,} x {height:,} pixels is too large: expected {most}")
    return width * height


def _png(content: bytes) -> tuple[int, int]:
    """Width and height, which the first chunk says; up to its end, a PNG consists of chunks."""
    length, kind, width, height = struct.unpack_from(">I4sII", content, 8)
    place = 8 + 12 + length
    if kind != b"IHDR" or length != 13 or not width * height:
        raise ValueError
    for _ in range(PIECES):
        length, kind = struct.unpack_from(">I4s", content, place)
        if kind == b"acTL":
            raise NotShown("the picture is animated: expected one that stands still")
        if kind == b"IEND":
            return width, height
        if kind == b"IHDR":
            raise ValueError
        place += 12 + length
    raise NotShown(f"the picture is in too many pieces: expected at most {PIECES:,}")


def _jpeg(content: bytes) -> tuple[int, int]:
    """Width and height, which stand in a segment before the first scan."""
    place, size = 2, None
    if content.count(b"\xff\xda") > SCANS:
        raise NotShown(f"the picture is drawn in too many scans: expected at most {SCANS}")
    for _ in range(PIECES):
        mark, kind, length = struct.unpack_from(">BBH", content, place)
        if mark != 0xFF or length < 2 or kind < 0xC0 or 0xD0 <= kind <= 0xD9 or kind == 0xFF:  # of these, some have no length
            raise ValueError
        if kind in FRAMES:
            height, width = struct.unpack_from(">HH", content, place + 5)
            if size or not width * height:
                raise ValueError
            size = width, height
        if kind == 0xDA:
            if not size:
                raise ValueError
            return size
        place += 2 + length
    raise NotShown(f"the picture is in too many pieces: expected at most {PIECES:,}")
