"""Devices as numbers: rates of matrix products and of memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.sim.core.hardware import Link, require_positive

# Assumed: neither from a data sheet nor fitted. `measured.fit.sensitivity` shows the effect of changing them.
STREAM_EFFICIENCY, FUSED_EFFICIENCY, SMALL_TILE_SLOWDOWN = 0.8, 0.6, 1.1
TILE_FILL, LAUNCH_SECONDS = 128, 4e-6

TILE_SHAPES = ((128, 256), (256, 128), (128, 128))  # rows and columns of the result that one processor computes at a time


@dataclass(frozen=True)
class Device:
    """A GPU.

    Parameters
    ----------
    name : str
    flops : float
        Peak FLOP per second, 16 bits, dense.
    processors : int
        Number of streaming multiprocessors.
    memory_bandwidth, memory : float
        Bytes per second, and bytes.
    matrix : float
        Fraction of `flops` that a processor reaches inside a tile of a large matrix product.
    inside, network : Link
        Links as sold: to devices of its node, and to others.
    stream : float
        Fraction of `memory_bandwidth` that elementwise operations reach.
    attention : float
        Fraction of their time by `product` that the small products of attention heads reach if they are operations of their own.
    small_tile : float
        Slowdown of a small tile per FLOP, as it reads its operands more often.
    fused : float
        Fraction of `flops` that attention reaches as a single operation (Dao, 2023, "FlashAttention-2"; Shah et al., 2024,
        "FlashAttention-3"), forward and backward together.
    fill : int
        Steps along the inner dimension that it takes to fill the pipeline of loads of a tile, and to drain it: small products wait longer
        (NVIDIA, "CUTLASS: efficient GEMM", software pipelining).
    launch : float
        Seconds from the end of an operation to the start of the next.
    flops8 : float
        Peak FLOP per second, 8 bits, dense; 0 if it has none.
    node : int
        Devices that `inside` connects, as sold.

    Raises
    ------
    ValueError
        A number is out of range.
    """

    name: str
    flops: float
    processors: int
    memory_bandwidth: float
    memory: float
    matrix: float
    inside: Link
    network: Link
    stream: float = STREAM_EFFICIENCY
    attention: float = 1.0
    small_tile: float = SMALL_TILE_SLOWDOWN
    fused: float = FUSED_EFFICIENCY
    fill: int = TILE_FILL
    launch: float = LAUNCH_SECONDS
    flops8: float = 0.0
    node: int = 8

    def __post_init__(self):
        parts = ("matrix", "stream", "attention", "fused")
        require_positive(self, f"the device {self.name}", "flops", "processors", "memory_bandwidth", "memory", "small_tile", *parts)
        for name in parts:
            if getattr(self, name) > 1:
                raise ValueError(f"the device {self.name}: {name} is a fraction, at most 1; got {getattr(self, name)}.")
        for name in ("fill", "launch", "flops8"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"the device {self.name}: {name} must be 0 or more; got {getattr(self, name)}.")

    def product(self, m: int, n: int, k: int, written: int = 2, count: int = 1, bits: int = 16) -> float:
        """Seconds of a matrix product of ``(m, k)`` by ``(k, n)``, or of `count` of them in one operation.

        The result is computed in tiles, one per processor, in waves: the last wave may leave processors idle. The result of a wave is
        written before the next one begins (NVIDIA, "Matrix multiplication background user's guide", sections 3 and 4).

        Parameters
        ----------
        m, n, k : int
        written : int
            Bytes written per number of the result, and read, if it is added to existing values.
        count : int
            Number of products of this size.
        bits : int
            Of a number of the operands: 16 or 8.
        """
        peak = self.flops if bits == 16 else self.flops8
        one, best = peak * self.matrix / self.processors, math.inf
        for rows, columns in TILE_SHAPES:
            waves = math.ceil(count * math.ceil(m / rows) * math.ceil(n / columns) / self.processors)
            longer = self.small_tile if rows * columns < TILE_SHAPES[0][0] * TILE_SHAPES[0][1] else 1.0
            begun = 2.0 * rows * columns * (k + self.fill) / one * longer
            best = min(best, waves * (begun + self.stream_time(rows * columns * written * self.processors)))
        read = (m * k + n * k) * bits / 8 + 2 * m * n
        return max(best, count * read / self.memory_bandwidth) + self.launch

    def stream_time(self, nbytes: float) -> float:
        """Seconds to read and write this many bytes of device memory."""
        return nbytes / (self.memory_bandwidth * self.stream)
