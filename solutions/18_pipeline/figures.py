"""Figures of part 18's text, computed when the notebook is built."""

from __future__ import annotations


def parts_of_the_example() -> str:
    """What the input, a forward and the message take in the worked example."""
    from course_lib.sim import H100, LAYER
    from course_lib.utils import wording

    link = H100.link((0, 1))
    message = LAYER.activation_bytes(64)
    seconds = H100.host.send(message), H100.compute(LAYER.forward_flop(64), LAYER.forward_bytes(64)), link.send(message)
    return "the input takes {}, a forward {}, and the message {}.".format(*map(wording.seconds, seconds))
