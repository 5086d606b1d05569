"""Cost of a transformer layer on one tensor parallel rank: seconds, and bytes kept for backward.

The operations are those of Megatron-LM's layer, one by one. The bytes that an operation streams are its arrays, read and written once each.
"""

from __future__ import annotations

from functools import lru_cache

from course_lib.sim.core.hardware import Link
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.costs.activations import HALF_BYTES, saved_activations
from course_lib.sim.llm.costs.exchanges import Exchanges
from course_lib.sim.llm.costs.experts import mlp_of_experts
from course_lib.sim.llm.costs.products import Cost, Products, mlp_products
from course_lib.sim.llm.hardware.device import Device
from course_lib.sim.llm.hardware.software import MEGATRON_2022, Software
from course_lib.sim.llm.transformer import Transformer

NORM_AGAIN_BYTES = 8  # per number of a layer's two norms, if their backward reads its arrays twice


def layer_cost(
    model: Transformer,
    device: Device,
    link: Link,
    c: Configuration,
    software: Software = MEGATRON_2022,
    exchanges: Exchanges | None = None,
    experts: bool = False,
) -> Cost:
    """Cost of a layer for one micro-batch; `link` connects the tensor parallel ranks, `exchanges` the others where there are any."""
    positions = c.micro_batch * model.sequence // c.context
    core = attention_core(model, device, software, c, exchanges.context if exchanges else None)
    attention = _attention_products(model, device, software, c, positions)
    if experts:
        assert exchanges
        mlp, middle = mlp_of_experts(model, device, exchanges, c, software)
    else:
        mlp, middle = mlp_products(model, device, software, c, positions, model.feed_forward), Cost(0, 0)
    streams = _streams(model, device, software, c, positions, experts)
    nbytes = HALF_BYTES * positions * model.hidden
    hidden = (software, c.sequence_parallel)
    # Positions stay shared out over tensor parallel ranks on their way to experts, but not to shared ones.
    halves = (attention,) if experts and not model.shared_experts else (attention, mlp)
    between = [_exchange(link, nbytes, c.tensor, part, hidden) for part in halves]
    parts = core + streams + middle + sum(between, Cost(0, 0))
    forward = attention.forward + mlp.forward + parts.forward
    backward = attention.inputs + attention.weights + mlp.inputs + mlp.weights + parts.backward
    saved = positions * sum(size for _, size in saved_activations(model, c.tensor, c.sequence_parallel, c.recompute, experts))
    spare, exchanged = 0.0, parts.exchanged
    if c.recompute != "none":
        nothing = positions * sum(size for _, size in saved_activations(model, c.tensor, c.sequence_parallel, "none", experts))
        spare = nothing - saved
        backward += forward if c.recompute == "full" else 0.0 if model.fused else core.forward
        exchanged *= 1.5 if c.recompute == "full" else 1.0
    return Cost(forward, backward, saved, spare, exchanged)


def _exchange(link: Link, nbytes: float, t: int, products: Products, hidden: tuple[Software, bool]) -> Cost:
    """Exchanges of the tensor parallel ranks in half a layer, as far as no product hides them."""
    if t == 1:
        return Cost(0.0, 0.0)
    software, split = hidden
    half = link.all_gather(nbytes, t)  # the all-gather or the reduce-scatter that an all-reduce consists of
    forward = (1 - software.hidden_forward) * 2 * half

    def exposed(seconds: float, behind: float) -> float:
        return seconds - min(software.hidden_backward * seconds, behind)

    if split:  # gradients are gathered, inputs that were kept in parts are gathered again, and the inputs' gradients are scattered
        backward = (1 - software.hidden_forward) * half + exposed(half, products.inputs) + exposed(half, products.weights)
    else:
        backward = exposed(2 * half, products.weights)
    return Cost(forward, backward, exchanged=forward + backward)


def _attention_products(m: Transformer, device: Device, software: Software, c: Configuration, positions: int) -> Products:
    t, latent = c.tensor, []
    if m.kv_rank:
        latent = [(m.kv_rank + m.rotary_width, m.hidden), (m.heads * (m.head_width - m.rotary_width + m.value_width) // t, m.kv_rank)]
        latent += [(m.query_rank, m.hidden), (m.query_width // t, m.query_rank)] if m.query_rank else [(m.query_width // t, m.hidden)]
    sizes = latent or [((m.query_width + 2 * m.kv_width) // t, m.hidden)]
    sizes.append((m.hidden, m.output_width // t))
    return sum((Products.of(device, software, positions, n, k, c.precision) for n, k in sizes), Products())


@lru_cache(maxsize=4096)
def _attention_core(m: Transformer, device: Device, tensor: int, context: int, micro_batch: int) -> tuple[float, float]:
    heads, mine = micro_batch * m.heads // tensor, m.sequence // context
    scores, width = heads * mine * m.sequence, m.head_width + m.value_width
    if m.fused:  # the mask leaves half of the scores; five products in backward for two in forward
        forward = 2 * 0.5 * scores * width / (device.flops * device.fused) + device.launch
        return forward, 2.5 * forward
    qk = device.product(mine, m.sequence, m.head_width, 2, heads)
    pv = device.product(mine, m.value_width, m.sequence, 2, heads)
    forward, backward = (qk + pv) / device.attention, 2 * (qk + pv) / device.attention
    forward += device.stream_time(scores * (9 if m.dropout else 4)) + 2 * device.launch
    return forward, backward + device.stream_time(scores * (11 if m.dropout else 6)) + 2 * device.launch


def attention_core(m: Transformer, device: Device, software: Software, c: Configuration, ring: Link | None) -> Cost:
    """Cost of attention between its matrices; context parallel ranks gather keys and values, or pass them on while they work on others."""
    forward, backward = _attention_core(m, device, c.tensor, c.context, c.micro_batch)
    if c.context == 1:
        return Cost(forward, backward)
    assert ring
    keys = HALF_BYTES * c.micro_batch * m.sequence // c.context * (m.kv_width + m.value_width * m.kv_heads) / c.tensor
    behind = (0.0, 0.0) if software.gathered_context else (forward / c.context, backward / c.context)
    waits = [max(0.0, ring.send(size) - seconds) for size, seconds in zip((keys, 2 * keys), behind, strict=True)]
    waits = [(c.context - 1) * wait for wait in waits]  # in backward, the gradients of keys and values travel, too
    return Cost(forward + waits[0], backward + waits[1], exchanged=sum(waits))


def _streams(m: Transformer, device: Device, software: Software, c: Configuration, positions: int, experts: bool) -> Cost:
    """Operations that stream arrays through memory, beside the matrix products."""
    shared, t = c.tensor if c.sequence_parallel else 1, c.tensor
    # Two norms (2 arrays read and written forward, 3 backward), two sums with the residual, of whose gradients one is added to another,
    # and dropout. Biases, where the MLP is not gated, are added after a product, and their gradients summed.
    wide, wide_back = (22, 38) if m.dropout else (20, 24)
    wide_back += 0 if software.fused_norms else NORM_AGAIN_BYTES
    heads = m.query_width + 2 * m.kv_width
    split, split_back = HALF_BYTES * 2 * m.output_width, HALF_BYTES * 2 * (heads + m.output_width)  # heads moved to the front, and back
    inside = 0 if experts else HALF_BYTES * (m.up_width + m.feed_forward)
    inside_back = 0 if experts else HALF_BYTES * (2 * m.up_width + m.feed_forward)
    if m.gated:  # queries and keys are rotated
        split, split_back = (size + HALF_BYTES * 2 * (m.query_width + m.kv_width) for size in (split, split_back))
    else:
        split, split_back, inside_back = (
            split + 2 * HALF_BYTES * heads,
            split_back + HALF_BYTES * heads,
            inside_back + HALF_BYTES * m.up_width,
        )
    forward = device.stream_time(positions * (wide * m.hidden / shared + (inside + split) / t)) + 8 * device.launch
    backward = device.stream_time(positions * (wide_back * m.hidden / shared + (inside_back + split_back) / t)) + 12 * device.launch
    return Cost(forward, backward)


def head_cost(model: Transformer, device: Device, link: Link, c: Configuration, software: Software = MEGATRON_2022) -> Cost:
    """Cost of the last norm, the output matrix and the loss, for one micro-batch."""
    m, t, positions = model, c.tensor, c.micro_batch * model.sequence // c.context
    columns = -(-m.vocabulary // t)
    products = Products.of(device, software, positions, columns, m.hidden)
    # Logits become 32-bit numbers; then their largest is found and subtracted, and exponentials are taken, summed and divided by the sum.
    # If this is a single operation, it reads 16 bits twice and writes a 32-bit number.
    read, read_back = (8, 8) if software.fused_loss else (38, 14)
    forward = products.forward + device.stream_time(read * positions * columns) + 8 * device.launch
    backward = products.inputs + products.weights + device.stream_time(read_back * positions * columns) + 4 * device.launch
    exchange = link.all_reduce(HALF_BYTES * positions * m.hidden, t) if t > 1 else 0.0
    shared = t if c.sequence_parallel else 1
    saved = positions * (HALF_BYTES * 2 * m.hidden / shared + 4 * columns)  # the norm's input and output, and 32-bit logits
    return Cost(forward, backward + exchange, saved, 0.0, exchange)
