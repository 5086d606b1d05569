"""Cost of the experts of a layer: they take the place of its MLP."""

from __future__ import annotations

from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.costs.activations import HALF_BYTES
from course_lib.sim.llm.costs.exchanges import Exchanges
from course_lib.sim.llm.costs.products import Cost, Products, mlp_products
from course_lib.sim.llm.hardware.device import Device
from course_lib.sim.llm.hardware.software import Software
from course_lib.sim.llm.transformer import Transformer


def mlp_of_experts(m: Transformer, device: Device, exchanges: Exchanges, c: Configuration, software: Software) -> tuple[Products, Cost]:
    """Cost of a layer's experts, shared ones included, for one micro-batch.

    Positions are sent to their experts and back (all-to-all; Lepikhin et al., 2020, "GShard"), and sorted by expert before and after. A
    device's experts compute in one operation, each with its share of the positions of all devices in the group.

    Returns
    -------
    Products, Cost
        The matrix products, and everything between them.
    """
    mine = c.micro_batch * m.sequence // c.context / c.tensor  # positions of this device
    visits = mine * m.top_k * (m.capacity or 1.0)
    here, width = m.experts // c.expert, m.expert_feed_forward // c.expert_tensor
    each = max(round(visits * c.expert * c.expert_tensor / m.experts), 1)
    up = width * (2 if m.gated else 1)
    first = Products.of(device, software, each, up, m.hidden, c.precision, here)
    products = first + Products.of(device, software, each, m.hidden, width, c.precision, here)
    products += Products.of(device, software, round(mine), m.experts, m.hidden)
    if m.shared_experts:
        shared = m.shared_experts * m.expert_feed_forward
        products += mlp_products(m, device, software, c, c.micro_batch * m.sequence // c.context, shared)
    sent = HALF_BYTES * visits * m.hidden
    copies = min(m.nodes_per_position or m.top_k, m.top_k) / m.top_k
    there = exchanges.experts.seconds(sent, copies)
    if c.expert_tensor > 1:
        there += exchanges.expert_tensor.all_gather(sent * c.expert_tensor, c.expert_tensor)
    exposed = 2 * there * (1 - software.hidden_experts)
    # Sorted, weighted and summed: a position's vector is read and written once for each visit, before and after; and the nonlinearity.
    nonlinearity = HALF_BYTES * here * each * (up + width)
    streamed = device.stream_time(4 * sent + nonlinearity) + 8 * device.launch
    streamed_back = device.stream_time(4 * sent + nonlinearity + HALF_BYTES * here * each * up) + 8 * device.launch
    return products, Cost(streamed + exposed, streamed_back + exposed, exchanged=2 * exposed)
