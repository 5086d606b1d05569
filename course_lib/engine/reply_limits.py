"""Limits on the replies of isolated ranks, checked before anything is parsed.

A JSON text of 8 MB can take 650 MB and some seconds to parse. A rank says itself that its reply is
too large; the broker checks again, as a rank can send anything.
"""

from __future__ import annotations

from course_lib.engine import serialization
from course_lib.utils import wording

# Of the JSON texts of all ranks together. The largest of a solution is the schedule of part 20, on
# one rank: 1.8 MB with 400,000 values. With several ranks, it is 40 kB with 5,000 values on each.
MAX_TEXT_BYTES, MAX_TEXT_VALUES = 8_000_000, 2_000_000
MAX_ARRAY_BYTES = 32_000_000  # of the arrays of one rank; part 08 has 10 MB
LEFT_OUT = "(the output of this cell is left out: the rank's reply would be {})\n"


def excess(text: bytes | bytearray, array_bytes: int, ranks: int) -> str | None:
    """Describe how a reply exceeds a limit; None if it does not.

    Parameters
    ----------
    text : bytes
        The JSON text.
    array_bytes : int
        Number of bytes of the arrays that follow it.
    ranks : int
        Number of ranks, which share the limits on texts.

    Examples
    --------
    >>> excess(b"[" + b"1," * 1_500_000 + b"1]", 0, 4)
    '3 MB of text without its arrays, and at most 2 MB are accepted from each of 4 ranks'
    """
    from_whom = f"from each of {ranks} ranks" if ranks > 1 else "from the rank"
    values = sum(text.count(mark) for mark in (b",", b"[", b"{"))
    measured = (
        (len(text), MAX_TEXT_BYTES // ranks, wording.size, "of text without its arrays"),
        (values, MAX_TEXT_VALUES // ranks, "{:,}".format, "values without its arrays"),
        (array_bytes, MAX_ARRAY_BYTES, wording.size, "of arrays"),
    )
    for size, most, formatted, what in measured:
        if size > most:
            return f"{formatted(size)} {what}, and at most {formatted(most)} are accepted {from_whom}"
    return None


def parts_within_limits(reply: dict, ranks: int) -> list[bytes]:
    """Encode a reply as `serialization.parts` does, or what is wrong with it.

    If it is too large, its outputs are left out; if that is not enough, it becomes an error.
    """
    text, *arrays = serialization.parts(reply)
    why = excess(text, sum(map(len, arrays)), ranks)
    if why and reply["outputs"]:
        reply = {**reply, "outputs": [{"stream": "stdout", "text": LEFT_OUT.format(why)}]}
        text, *arrays = serialization.parts(reply)
        why = excess(text, sum(map(len, arrays)), ranks)
    if why:
        message = f"the result has {why}. Return numbers in a NumPy array: its data is not text."
        name = "ResultTooLarge"
        error = {"name": name, "message": message, "place": "", "lines": [], "kind": [name]}
        reply = {**reply, "outputs": [], "value": None, "error": error}
        text, *arrays = serialization.parts(reply)
    return [text, *arrays]
