"""Limits on the images that a rank displays: PNG and JPEG of bounded size, as a small file may unpack to gigabytes in the browser.

The size is read from the header, without decoding. Anything that a decoder might interpret differently is refused: a second header, bytes
between segments, a missing end.
"""

from __future__ import annotations

import base64
import struct

IMAGE_SIGNATURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
MAX_IMAGE_PIXELS, MAX_SIDE_PIXELS = 25_000_000, 20_000
MAX_NOTEBOOK_PIXELS = 100_000_000  # of all images in one notebook
MAX_IMAGE_SEGMENTS, MAX_JPEG_SCANS = 10_000, 100  # PNG chunks or JPEG segments; JPEG scans, each of which redraws the whole image
SOF_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # JPEG's start-of-frame markers, whose segments have the size


class ImageRejected(ValueError):
    """An image is not shown; the message says why."""


def allowed_images(data: dict, most: int = MAX_IMAGE_PIXELS) -> tuple[dict, int]:
    """Remove the images that exceed the limits from an output.

    Parameters
    ----------
    data : dict of str to str
        The output by MIME type, as in a notebook.
    most : int
        Pixels that are left for this output.

    Returns
    -------
    data : dict of str to str
        If no image is left, its "text/plain" says why.
    pixels : int
        Number of pixels of the remaining images.
    """
    found, total, why = {kind: value for kind, value in data.items() if kind not in IMAGE_SIGNATURES}, 0, ""
    for kind in (kind for kind in IMAGE_SIGNATURES if kind in data):
        try:
            size = pixels(kind, data[kind])
            if total + size > most:
                raise ImageRejected(f"one more image, of {size:,} pixels, is too much: expected at most {most:,} more in this notebook")
        except ImageRejected as problem:
            why = str(problem)
            continue
        found[kind], total = data[kind], total + size
    if why and not total:
        found["text/plain"] = f"(not shown: {why})"
    return found, total


def pixels(kind: str, data: object) -> int:
    """Return the number of pixels of an image.

    Parameters
    ----------
    kind : str
        "image/png" or "image/jpeg".
    data : str
        The file, in base64.

    Raises
    ------
    ImageRejected
        The image is not of that kind, too large, or animated.
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
        raise ImageRejected(f"expected a complete {name}, got something else") from None
    if width * height > MAX_IMAGE_PIXELS or max(width, height) > MAX_SIDE_PIXELS:
        most = f"at most {MAX_IMAGE_PIXELS:,} pixels, and {MAX_SIDE_PIXELS:,} on a side"
        raise ImageRejected(f"an image of {width:,} x {height:,} pixels is too large: expected {most}")
    return width * height


def _png(content: bytes) -> tuple[int, int]:
    """Return width and height, from the first chunk; all chunks up to the end are checked."""
    length, kind, width, height = struct.unpack_from(">I4sII", content, 8)
    place = 8 + 12 + length
    if kind != b"IHDR" or length != 13 or not width * height:
        raise ValueError
    for _ in range(MAX_IMAGE_SEGMENTS):
        length, kind = struct.unpack_from(">I4s", content, place)
        if kind == b"acTL":
            raise ImageRejected("the image is animated: expected a still one")
        if kind == b"IEND":
            return width, height
        if kind == b"IHDR":
            raise ValueError
        place += 12 + length
    raise ImageRejected(f"the image is in too many pieces: expected at most {MAX_IMAGE_SEGMENTS:,}")


def _jpeg(content: bytes) -> tuple[int, int]:
    """Return width and height, from a segment before the first scan."""
    place, size = 2, None
    if content.count(b"\xff\xda") > MAX_JPEG_SCANS:
        raise ImageRejected(f"the image has too many scans: expected at most {MAX_JPEG_SCANS}")
    for _ in range(MAX_IMAGE_SEGMENTS):
        mark, kind, length = struct.unpack_from(">BBH", content, place)
        if mark != 0xFF or length < 2 or kind < 0xC0 or 0xD0 <= kind <= 0xD9 or kind == 0xFF:  # markers without a length
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
    raise ImageRejected(f"the image is in too many pieces: expected at most {MAX_IMAGE_SEGMENTS:,}")
