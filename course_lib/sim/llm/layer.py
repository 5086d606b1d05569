"""Cost of a transformer layer on one tensor parallel rank: seconds, and bytes kept for backward.

The operations are those of Megatron-LM's layer, and they keep what Korthikanti et al., 2022 ("Reducing activation recomputation in large
transformer models", section 4) count: 16-bit activations, 8-bit dropout masks. The bytes that an operation streams are its arrays, read
and written once each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from course_lib.sim.core.hardware import Link
from course_lib.sim.llm.cluster import Device
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.transformer import Transformer

HALF_BYTES, GRADIENT_ACCUMULATION_BYTES = (
    2,
    8,
)  # bytes of a number; and of a gradient accumulated in 32 bits: read and written


@dataclass(frozen=True)
class Cost:
    """Cost of a layer, or another part of the model, for one micro-batch on one rank.

    Attributes
    ----------
    forward, backward : float
        Seconds; with recomputation, including exchanges among tensor parallel ranks and everything that waits for them.
    saved : float
        Bytes kept from forward to backward.
    spare : float
        Temporary bytes of backward: recomputed activations.
    exchanged : float
        The part of these seconds spent in exchanges.
    """

    forward: float
    backward: float
    saved: float = 0.0
    spare: float = 0.0
    exchanged: float = 0.0


def saved_activations(
    model: Transformer, tensor: int = 1, sequence_parallel: bool = False, recompute: str = "none"
) -> Iterator[tuple[str, float]]:
    """Yield the arrays that a layer keeps for backward, in bytes per position of each text.

    >>> sum(nbytes for _, nbytes in saved_activations(Transformer("small", 1, 64, 4, 32))) / 64 == 34 + 5 * 4 * 32 / 64
    True
    """
    m, t = model, tensor
    whole = t if sequence_parallel else 1  # number of ranks that split the arrays that are not split by heads or columns
    if recompute == "full":
        yield "input", HALF_BYTES * m.hidden / whole
        return
    yield "input of the first norm", HALF_BYTES * m.hidden / whole
    yield "input of queries, keys and values", HALF_BYTES * m.hidden / whole
    yield "queries", HALF_BYTES * m.hidden / t
    yield "keys", HALF_BYTES * m.kv_width / t
    yield "values", HALF_BYTES * m.kv_width / t
    if recompute == "none" and not m.fused:
        yield "probabilities", HALF_BYTES * m.heads * m.sequence / t
        if m.dropout:
            yield "mask of the probabilities", m.heads * m.sequence / t
            yield "probabilities after dropout", HALF_BYTES * m.heads * m.sequence / t
    yield "input of the projection", HALF_BYTES * m.hidden / t
    if m.dropout:
        yield "mask after attention", m.hidden / whole
    yield "input of the second norm", HALF_BYTES * m.hidden / whole
    yield "input of the MLP", HALF_BYTES * m.hidden / whole
    yield "input of the nonlinearity", HALF_BYTES * m.up_width / t
    yield "input of the MLP's last matrix", HALF_BYTES * m.feed_forward / t
    if m.dropout:
        yield "mask after the MLP", m.hidden / whole


@lru_cache(maxsize=4096)
def layer_cost(model: Transformer, device: Device, link: Link, c: Configuration) -> Cost:
    """Cost of a layer for one micro-batch; `link` connects the tensor parallel ranks."""
    m, t = model, c.tensor
    positions = c.micro_batch * m.sequence
    matrices = (
        ((m.hidden + 2 * m.kv_width) // t, m.hidden),
        (m.hidden, m.hidden // t),
        (m.up_width // t, m.hidden),
        (m.hidden, m.feed_forward // t),
    )
    forward = sum(device.product(positions, n, k) for n, k in matrices)
    backward = sum(device.product(positions, k, n) + device.product(n, k, positions, GRADIENT_ACCUMULATION_BYTES) for n, k in matrices)

    scores = c.micro_batch * m.heads // t * m.sequence**2
    products = 2 * 2 * scores * (m.hidden // m.heads) / (device.flops * device.matrix * device.attention)
    core = products + (0.0 if m.fused else device.stream_time(scores * (9 if m.dropout else 4)))
    core_back = products * (2.5 if m.fused else 2) + (0.0 if m.fused else device.stream_time(scores * (11 if m.dropout else 6)))

    shared = t if c.sequence_parallel else 1
    turned = HALF_BYTES * 2 * (2 * m.hidden + 2 * m.kv_width) / t  # heads moved to the front, and back
    inside = HALF_BYTES * (m.up_width + m.feed_forward) / t
    # Two norms, two residual sums, dropout; in backward, these sums are assumed to be fused with the norms.
    wide, wide_back = (22, 22) if m.dropout else (20, 12)
    streamed = device.stream_time(positions * (wide * m.hidden / shared + inside + turned))
    streamed_back = device.stream_time(positions * (wide_back * m.hidden / shared + inside + HALF_BYTES * m.up_width / t + turned))

    nbytes = HALF_BYTES * positions * m.hidden
    exchange = 2 * link.all_reduce(nbytes, t) if t > 1 else 0.0
    again = 2 * link.all_gather(nbytes, t) if c.sequence_parallel and t > 1 else 0.0  # inputs that were kept in parts

    once = forward + core + streamed + exchange
    back = backward + core_back + streamed_back + exchange + again
    exchanged, spare = 2 * exchange + again, 0.0
    saved = positions * sum(size for _, size in saved_activations(m, t, c.sequence_parallel, c.recompute))
    if c.recompute != "none":
        nothing = positions * sum(size for _, size in saved_activations(m, t, c.sequence_parallel))
        spare = nothing - saved
        back += once if c.recompute == "full" else 0.0 if m.fused else core
        exchanged += exchange if c.recompute == "full" else 0.0
    return Cost(once, back, saved, spare, exchanged)


@lru_cache(maxsize=4096)
def head_cost(model: Transformer, device: Device, link: Link, c: Configuration) -> Cost:
    """Cost of the last norm, the output matrix and the loss, for one micro-batch."""
    m, t, positions = model, c.tensor, c.micro_batch * model.sequence
    columns = -(-m.vocabulary // t)
    forward = device.product(positions, columns, m.hidden) + device.stream_time(12 * positions * columns)
    backward = device.product(positions, m.hidden, columns) + device.product(columns, m.hidden, positions, GRADIENT_ACCUMULATION_BYTES)
    backward += device.stream_time(12 * positions * columns)
    exchange = link.all_reduce(HALF_BYTES * positions * m.hidden, t) if t > 1 else 0.0
    shared = t if c.sequence_parallel else 1
    saved = positions * (HALF_BYTES * 2 * m.hidden / shared + 4 * columns)  # the norm's input and output, and 32-bit logits
    return Cost(forward, backward + exchange, saved, 0.0, exchange)
