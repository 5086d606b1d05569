"""Calibration of the simulator for this machine: compute and message rates, measured on the ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import psutil

from course_lib.sim.core.hardware import Hardware, Link

MATMUL_ROWS = (64, 128, 256, 512)  # rows of the square matrices
MESSAGE_SIZES_BYTES = (1 << 10, 1 << 16, 1 << 20, 1 << 22)  # bytes
NUMPY_CALLS_PER_BLOCK = 250  # calls of NumPy, or equally long ones, in a block's forward or backward
BYTES_PER_ELEMENTWISE_OP = 12  # bytes that an operation on two arrays reads and writes for each float32


@dataclass(frozen=True)
class Processor(Hardware):
    """Processor that does one thing at a time: arithmetic or passes over memory.

    Parameters
    ----------
    call : float
        Seconds of a NumPy call that computes almost nothing.
    """

    call: float = 0.0

    def compute(self, flop: float, nbytes: float) -> float:
        """Seconds of an operation: the time for its FLOP plus the time for its bytes."""
        part = next((part for least, part in self.efficiency if flop >= least), 1.0)
        return flop / (self.flops * part) + nbytes / self.memory_bandwidth


def calibrate(ranks, size: int | None = None) -> Processor:
    """Measure matrix products, passes over memory and messages on the ranks, all at the same time.

    Parameters
    ----------
    ranks : Ranks
    size : int, optional
        Number of ranks that work, so that the cores are shared as in the measured step; by default all.

    Returns
    -------
    Processor
        Rates of float32 on one rank; its links connect neighbours. Medians over the ranks and several tries.
    """
    n = min(size or ranks.n, ranks.n)
    found = [
        each
        for each in ranks.call(measure_rank, dict(size=n, products=MATMUL_ROWS, messages=MESSAGE_SIZES_BYTES, elements=1 << 18))
        if each
    ]
    rates, passes, sent = (np.median([each[i] for each in found], axis=0).tolist() for i in range(3))
    top = max(rates)
    efficiency = tuple((2.0 * rows**3, rate / top) for rows, rate in reversed(list(zip(MATMUL_ROWS, rates, strict=True))))
    link = Link(float("inf"))
    if n > 1:
        latency = sent[0]
        link = Link(MESSAGE_SIZES_BYTES[-1] / max(sent[-1] - latency, 1e-9), 1.0, latency)
    memory = psutil.virtual_memory().total // ranks.n
    cores = os.cpu_count() or 1
    name = f"this machine, {n} {'rank' if n == 1 else 'ranks'} on {cores} {'core' if cores == 1 else 'cores'}"
    smallest = (0.0, efficiency[-1][1])
    return Processor(name, top, (*efficiency, smallest), BYTES_PER_ELEMENTWISE_OP / passes[0], memory, link, link, link, ranks.n, passes[1])


def measure_rank(size, products, messages, elements):
    """Measure on a rank: FLOP/s for these matrix sizes; seconds per number of a pass, and per call; seconds of messages."""
    import time

    import numpy as np

    from course_lib import memory
    from course_lib.collectives import Communicator

    comm = Communicator()
    me = comm.Get_rank()
    group = comm.Split(color=int(me >= size), key=me)
    if me >= size:
        return None

    memory.reuse_freed()

    def median(work, times=15):
        work()
        taken = []
        for _ in range(times):
            begin = time.perf_counter()
            work()
            taken.append(time.perf_counter() - begin)
        return sorted(taken)[times // 2]

    random, rates, sent = np.random.default_rng(me), [], []
    for rows in products:
        a, b = random.standard_normal((2, rows, rows), np.float32)
        many = max(1, (1 << 28) // (2 * rows**3))  # so that each try takes some milliseconds
        group.Barrier()
        rates.append(2.0 * rows**3 * many / median(lambda a=a, b=b, many=many: [a @ b for _ in range(many)]))
    arrays, out = ([random.standard_normal(elements, np.float32) for _ in range(12)] for _ in "ab")  # larger than a cache, like activations
    group.Barrier()
    passes = median(lambda: [np.add(arrays[i], arrays[i - 1], out=out[i]) for i in range(12)]) / (12 * elements)
    few, into = np.ones(4, np.float32), np.empty(4, np.float32)
    call = median(lambda: [np.add(few, few, out=into) for _ in range(1000)]) / 1000
    for nbytes in messages if size > 1 else ():
        out, into = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
        after, before = (me + 1) % size, (me - 1) % size
        group.Barrier()
        sent.append(median(lambda out=out, into=into: group.Sendrecv(out, after, recvbuf=into, source=before)))
    return rates, [passes, call], sent


@dataclass(frozen=True)
class BlockCost:
    """Cost of a block of `gpt.model.block`, and of a pipeline stage of several.

    Products are counted exactly; passes over memory are counted as in the code of `autograd`: each elementwise operation is one pass, an
    exponential three. Calls are counted, too; their own time is a few per cent.

    Parameters
    ----------
    width, heads, positions, samples : int
        Sizes of a micro-batch.
    """

    width: int
    heads: int
    positions: int
    samples: int

    @property
    def tokens(self) -> int:
        """Number of tokens in a micro-batch."""
        return self.samples * self.positions

    def flop(self) -> float:
        """FLOP of forward: the matrices, 12 width² parameters together, and the scores and weighted sums of attention over all pairs."""
        return self.tokens * (24.0 * self.width**2 + 4.0 * self.positions * self.width)

    def message_bytes(self) -> int:
        """Bytes of an activation in float32."""
        return 4 * self.tokens * self.width

    def seconds(self, kind: str, hardware: Processor) -> float:
        """Seconds of a block's "forward" or "backward".

        Backward has twice the products, and adds its gradients to those of earlier micro-batches.
        """
        forward = kind == "forward"
        passes = self.tokens * (66 * self.width + 9 * self.heads * self.positions)
        if not forward:
            passes = self.tokens * (88 * self.width + 3 * self.heads * self.positions) + 12 * self.width**2
        rest = passes * BYTES_PER_ELEMENTWISE_OP / hardware.memory_bandwidth + NUMPY_CALLS_PER_BLOCK * hardware.call
        return (1 if forward else 2) * self._products(hardware) + rest

    def _products(self, hardware: Processor) -> float:
        """Seconds of a block's products, each timed by its size."""
        w, t, d = self.width, self.tokens, self.width // self.heads
        whole = sum(hardware.compute(2.0 * t * a * b, 0) for a, b in ((w, 3 * w), (w, w), (w, 4 * w), (4 * w, w)))
        pairs = self.samples * self.heads
        return whole + 2 * pairs * hardware.compute(2.0 * self.positions**2 * d, 0)
