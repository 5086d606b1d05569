"""The pictures that a rank shows: PNG and JPEG of bounded size. A small file may unpack to gigabytes in the browser that shows it.

The size stands in a picture's header, which is read here without unpacking anything. Whatever a decoder might read in another way is
refused: a second header, bytes between the segments, an end that is missing.
"""

from __future__ import annotations

import base64
import struct

IMAGE_SIGNATURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
MAX_IMAGE_PIXELS, MAX_SIDE_PIXELS = 25_000_000, 20_000  # pixels of a picture, and of a side
MAX_NOTEBOOK_PIXELS = 100_000_000  # pixels of all pictures in one notebook
MAX_IMAGE_SEGMENTS, MAX_JPEG_SCANS = (
    10_000,
    100,
)  # chunks or segments of a picture; a JPEG's scans, each of which is drawn over the whole picture
SOF_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # a JPEG's markers that say its size


class ImageRejected(ValueError):
    """A picture is not shown; the message says why."""


def allowed_images(data: dict, most: int = MAX_IMAGE_PIXELS) -> tuple[dict, int]:
    """An output's data without the pictures that are not shown, and the pixels of the others.

    Parameters
    ----------
    data : dict
        By MIME type, as in a notebook. Where no picture is left, a sentence says why.
    most : int
        Pixels that there still is room for.
    """
    found, total, why = {kind: value for kind, value in data.items() if kind not in IMAGE_SIGNATURES}, 0, ""
    for kind in (kind for kind in IMAGE_SIGNATURES if kind in data):
        try:
            size = pixels(kind, data[kind])
            if total + size > most:
                raise ImageRejected(f"one more picture, of {size:,} pixels, is too much: expected at most {most:,} more in this notebook")
        except ImageRejected as problem:
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
        if not content.startswith(IMAGE_SIGNATURES[kind]):
            raise ValueError
        width, height = (_png if name == "PNG" else _jpeg)(content)
    except ImageRejected:
        raise
    except (AttributeError, ValueError, struct.error):
        raise ImageRejected(f"expected a whole {name}, got something else") from None
    if width * height > MAX_IMAGE_PIXELS or max(width, height) > MAX_SIDE_PIXELS:
        most = f"at most {MAX_IMAGE_PIXELS:,} pixels, and {MAX_SIDE_PIXELS:,} on a side"
        raise ImageRejected(f"a picture of {width:,} x {height:,} pixels is too large: expected {most}")
    return width * height


def _png(content: bytes) -> tuple[int, int]:
    """Width and height, which the first chunk says; up to its end, a PNG consists of chunks."""
    length, kind, width, height = struct.unpack_from(">I4sII", content, 8)
    place = 8 + 12 + length
    if kind != b"IHDR" or length != 13 or not width * height:
        raise ValueError
    for _ in range(MAX_IMAGE_SEGMENTS):
        length, kind = struct.unpack_from(">I4s", content, place)
        if kind == b"acTL":
            raise ImageRejected("the picture is animated: expected a still one")
        if kind == b"IEND":
            return width, height
        if kind == b"IHDR":
            raise ValueError
        place += 12 + length
    raise ImageRejected(f"the picture is in too many pieces: expected at most {MAX_IMAGE_SEGMENTS:,}")


def _jpeg(content: bytes) -> tuple[int, int]:
    """Width and height, which stand in a segment before the first scan."""
    place, size = 2, None
    if content.count(b"\xff\xda") > MAX_JPEG_SCANS:
        raise ImageRejected(f"the picture is drawn in too many scans: expected at most {MAX_JPEG_SCANS}")
    for _ in range(MAX_IMAGE_SEGMENTS):
        mark, kind, length = struct.unpack_from(">BBH", content, place)
        if mark != 0xFF or length < 2 or kind < 0xC0 or 0xD0 <= kind <= 0xD9 or kind == 0xFF:  # of these, some have no length
            raise ValueError
        if kind in SOF_MARKERS:
            height, width = struct.unpack_from(">HH", content, place + 5)
            if size or not width * height:
                raise ValueError
            size = width, height
        if kind == 0xDA:
            if not size:
                raise ValueError
            return size
        place += 2 + length
    raise ImageRejected(f"the picture is in too many pieces: expected at most {MAX_IMAGE_SEGMENTS:,}")
