"""Seconds of matrix products forward and backward, and what a part of the model costs."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.hardware.device import Device
from course_lib.sim.llm.hardware.software import Software
from course_lib.sim.llm.transformer import Transformer

ACCUMULATION_BYTES = 8  # of a gradient that a matrix product adds to its sum in 32 bits: read and written
UNFUSED_BYTES = 10  # read again in 16 bits, and added to the sum


@dataclass(frozen=True)
class Cost:
    """Cost of a layer, or another part of the model, for one micro-batch on one rank.

    Attributes
    ----------
    forward, backward : float
        Seconds; with recomputation, including exchanges and everything that waits for them.
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

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def __mul__(self, n: float) -> Cost:
        return Cost(*(n * getattr(self, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Products:
    """Seconds of matrix products: forward, gradients of their inputs, gradients of their weights."""

    forward: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0

    def __add__(self, other: Products) -> Products:
        return Products(self.forward + other.forward, self.inputs + other.inputs, self.weights + other.weights)

    @classmethod
    def of(cls, device: Device, software: Software, positions: int, n: int, k: int, precision: str = "bf16", count: int = 1) -> Products:
        """Products of ``(positions, k)`` by ``(k, n)`` forward, `count` of them in one operation, and those of their backward."""
        bits = 8 if precision == "fp8" else 16
        forward = device.product(positions, n, k, 2, count, bits)
        inputs = device.product(positions, k, n, 2, count, bits)
        weights = device.product(n, k, positions, ACCUMULATION_BYTES if software.fused_accumulation else 2, count, bits)
        if not software.fused_accumulation:
            weights += device.stream_time(UNFUSED_BYTES * count * n * k) + device.launch
        if bits == 8:  # inputs and gradients are converted: 16 bits read, and both orders of rows and columns written in 8
            forward += device.stream_time(4 * count * positions * k) + device.launch
            inputs += device.stream_time(4 * count * positions * n) + device.launch
        return cls(forward, inputs, weights)


def mlp_products(m: Transformer, device: Device, software: Software, c: Configuration, positions: int, width: int) -> Products:
    """Matrix products of a single MLP of this width."""
    up = width * (2 if m.gated else 1)
    first = Products.of(device, software, positions, up // c.tensor, m.hidden, c.precision)
    return first + Products.of(device, software, positions, m.hidden, width // c.tensor, c.precision)
