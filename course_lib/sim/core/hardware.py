"""Cost model of the simulator: a device, its links and a layer, with units.

Rates use powers of ten, as data sheets do (450 GB/s is 450e9 bytes per second); memory uses powers of two, as devices report it
(80 GB on a label is 80 * 1024**3 bytes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from numbers import Real

GIB = 1024**3


def require_positive(thing: object, what: str, *names: str, endless: bool = False) -> None:
    """Raise ValueError unless these attributes are numbers greater than 0; `endless` allows infinity."""
    for name in names:
        value = getattr(thing, name)
        if isinstance(value, bool) or not isinstance(value, Real) or not (0 < value < math.inf or (endless and value == math.inf)):
            raise ValueError(f"{what} must have {'an' if name[0] in 'aeiou' else 'a'} {name} greater than 0; got {value!r}.")


@dataclass(frozen=True)
class Link:
    """A connection between ranks.

    Parameters
    ----------
    bandwidth : float
        Bytes per second, each way.
    efficiency : float
        Fraction of the bandwidth that a transfer reaches.
    latency : float
        Seconds until the first byte of a message arrives.

    Raises
    ------
    ValueError
        A number is out of range.
    """

    bandwidth: float
    efficiency: float = 1.0
    latency: float = 0.0

    def __post_init__(self):
        require_positive(self, "a link", "bandwidth", "efficiency", endless=True)
        if self.efficiency > 1 or not 0 <= self.latency < math.inf:
            raise ValueError(f"a link's efficiency must be at most 1, and its latency 0 or more; got {self.efficiency} and {self.latency}.")

    def send(self, nbytes: float) -> float:
        """Seconds to send bytes to one other rank."""
        return self.latency + nbytes / (self.bandwidth * self.efficiency)

    def all_gather(self, nbytes: float, n: int) -> float:
        """Seconds of a ring all-gather or reduce-scatter among n ranks, of an array whose full size is `nbytes`.

        Each of the n - 1 steps passes a piece of ``nbytes / n`` on to the next rank (Thakur et al., 2005,
        "Optimization of collective communication operations in MPICH", section 4).
        """
        return (n - 1) * self.send(nbytes / n)

    reduce_scatter = all_gather  # the same number of steps with the same number of bytes

    def all_reduce(self, nbytes: float, n: int) -> float:
        """Seconds of a ring all-reduce: a reduce-scatter followed by an all-gather."""
        return 2 * self.all_gather(nbytes, n)


@dataclass(frozen=True)
class Hardware:
    """A device and its links.

    Parameters
    ----------
    name : str
    flops : float
        Peak FLOP per second in half precision.
    efficiency : tuple of (float, float)
        (FLOP, fraction of the peak): operations of at least this size reach this fraction; the largest size first.
    memory_bandwidth : float
        Bytes per second between the device's memory and its cores.
    memory : float
        Bytes.
    nvlink, network : Link
        Links within a domain and beyond it.
    domain : int
        Number of ranks in an NVLink domain: ranks 0 to domain - 1, and so on.
    host : Link
        Link from the host, over which the inputs arrive.
    """

    name: str
    flops: float
    efficiency: tuple[tuple[float, float], ...]
    memory_bandwidth: float
    memory: float
    nvlink: Link
    network: Link
    host: Link
    domain: int = 8

    def compute(self, flop: float, nbytes: float) -> float:
        """Seconds of an operation: the larger of the times for its FLOP and its bytes (Williams et al., 2009, "Roofline")."""
        part = next((part for least, part in self.efficiency if flop >= least), 1.0)
        return max(flop / (self.flops * part), nbytes / self.memory_bandwidth)

    def link(self, ranks: tuple[int, ...]) -> Link:
        """Link between these ranks: NVLink if all are in the same domain."""
        return self.nvlink if min(ranks) // self.domain == max(ranks) // self.domain else self.network


H100 = Hardware(
    name="H100 80 GB",
    flops=989e12,
    efficiency=((128e9, 0.95), (16e9, 0.9), (1e9, 0.6), (0, 0.1)),
    memory_bandwidth=3352e9,
    memory=80 * GIB,
    nvlink=Link(450e9, 0.65, 10e-6),
    network=Link(50e9, 0.9, 20e-6),
    host=Link(64e9),  # PCIe 5, 16 lanes
)
A100 = Hardware(
    name="A100 80 GB",
    flops=312e12,
    efficiency=((128e9, 0.85), (16e9, 0.8), (1e9, 0.5), (0, 0.1)),
    memory_bandwidth=2039e9,
    memory=80 * GIB,
    nvlink=Link(300e9, 0.65, 10e-6),
    network=Link(25e9, 0.9, 20e-6),
    host=Link(32e9),  # PCIe 4, 16 lanes
)

_FREE = Link(float("inf"))
FREE_COMMUNICATION = replace(H100, name="H100 80 GB, free communication", nvlink=_FREE, network=_FREE, host=_FREE)
HARDWARE_PRESETS = {hardware.name: hardware for hardware in (H100, A100, FREE_COMMUNICATION)}


@dataclass(frozen=True)
class Layer:
    """A layer of the model: one square matrix that is applied to every token.

    Subclass or replace it to simulate another layer: the simulator only uses the methods' results.

    Parameters
    ----------
    width : int
        The matrix is ``width x width``.
    tokens : int
        Tokens per sample.
    itemsize : int
        Bytes per number of weights, gradients and activations.
    optimizer_itemsize : int
        Bytes of optimizer state per weight: a float32 copy and Adam's two moments, 12 (Rajbhandari et al., 2020, "ZeRO",
        section 3.1).
    """

    width: int = 4096
    tokens: int = 1024
    itemsize: int = 2
    optimizer_itemsize: int = 12
    parameters: int = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "parameters", self.width**2)

    def forward_flop(self, samples: int) -> float:
        """FLOP to apply the layer to this many samples."""
        return 2.0 * self.parameters * self.tokens * samples

    def backward_flop(self, samples: int) -> float:
        """FLOP of the gradients of the input and of the weight."""
        return 2 * self.forward_flop(samples)

    def forward_bytes(self, samples: int) -> float:
        """Bytes that forward reads and writes: weight, input, output."""
        return self.weight_bytes() + 2 * self.activation_bytes(samples)

    def backward_bytes(self, samples: int) -> float:
        """Bytes that backward reads and writes: weight, input and the output's gradient, and the gradients of the first two."""
        return 2 * self.weight_bytes() + 3 * self.activation_bytes(samples)

    def update_bytes(self, part: float) -> float:
        """Bytes that the optimizer reads and writes for this fraction of the weight."""
        return part * (3 * self.weight_bytes() + 2 * self.optimizer_bytes())

    def update_flop(self, part: float) -> float:
        """FLOP of Adam for this fraction of the weight: about a dozen per number."""
        return 12.0 * self.parameters * part

    def weight_bytes(self) -> int:
        """Bytes of the whole weight, and of its gradient."""
        return self.parameters * self.itemsize

    def optimizer_bytes(self) -> int:
        """Bytes of the whole optimizer state."""
        return self.parameters * self.optimizer_itemsize

    def activation_bytes(self, samples: int) -> int:
        """Bytes of a layer's input for this many samples, and of its gradient."""
        return samples * self.tokens * self.width * self.itemsize


LAYER = Layer()
