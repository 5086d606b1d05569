"""Settings of `python -m course_lib.gpt`: the model, the training and the grid of ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.gpt.model.decoder import Sizes
from course_lib.mesh import Mesh

VOCABULARY_SIZE = 256  # a token is a byte


class SettingsError(ValueError):
    """The settings are inconsistent; the message says which."""


@dataclass(frozen=True)
class Settings:
    """Model, grid and length of training.

    Parameters
    ----------
    dp, pp, cp, tp : int
        Number of data, pipeline, context and tensor parallel ranks. Context parallel ranks split each text's positions, in zigzag order.
    sequence : bool
        Sequence parallelism: the tensor parallel ranks split the positions wherever they do not split heads or columns.
    experts : int
        Experts instead of each block's MLP, sharded over the data and context parallel ranks; 0 for none.
    capacity : float
        The experts' capacity factor, see part 24.
    fsdp : bool
        Shard parameters, gradients and optimizer state over the data and context parallel ranks.
    schedule : str
        "1f1b" or "gpipe".
    width, heads, depth, length : int
        Sizes of the model, see `Sizes`; `length` is also that of a text in training.
    batch : int
        Texts per step, over all ranks.
    micro_batches : int, optional
        Number of micro-batches per data parallel rank; by default about two for each rank of the pipeline.
    steps : int
    lr : float
        Adam's learning rate; it warms up to this value in the first steps.
    clip : float
        Largest norm of all gradients together.
    seed : int
        Seed of the weights and the choice of texts.

    Raises
    ------
    SettingsError
        The settings are inconsistent.
    """

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    sequence: bool = False
    experts: int = 0
    capacity: float = 1.25
    fsdp: bool = False
    schedule: str = "1f1b"
    width: int = 160
    heads: int = 4
    depth: int = 4
    length: int = 128
    batch: int = 16
    micro_batches: int | None = None
    steps: int = 200
    lr: float = 2e-3
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self):
        for name in ("dp", "pp", "cp", "tp", "width", "heads", "depth", "length", "batch", "steps"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if self.experts < 0 or self.seed < 0:
            raise SettingsError(f"experts and seed must not be negative; got {self.experts} and {self.seed}.")
        for name in ("lr", "clip", "capacity"):
            if not 1e-12 <= getattr(self, name) < math.inf:  # in float32, smaller values soon become 0
                raise SettingsError(f"{name} must be a number of at least 1e-12; got {getattr(self, name)}.")
        if self.schedule not in ("1f1b", "gpipe"):
            raise SettingsError(f"schedule must be 1f1b or gpipe; got {self.schedule!r}.")
        self._require_divisor("heads", self.heads, "width", self.width, "each head gets an equal part")
        self._require_divisor("tp", self.tp, "heads", self.heads, "a tensor parallel rank holds whole heads")
        self._require_divisor(
            "tp", self.tp, "vocabulary", VOCABULARY_SIZE, "each tensor parallel rank holds the same number of columns of the last matrix"
        )
        self._require_divisor("pp", self.pp, "depth", self.depth, "a pipeline stage holds whole blocks")
        self._require_divisor("dp", self.dp, "batch", self.batch, "a data parallel rank trains on whole texts")
        if self.cp > 1:
            self._require_divisor("2 × cp", 2 * self.cp, "length", self.length, "a context parallel rank holds two chunks of a text")
        if self.sequence:
            length = self.length // self.cp
            name = "positions of a context parallel rank" if self.cp > 1 else "length"
            self._require_divisor("tp", self.tp, name, length, "sequence parallel ranks hold equal parts of a text")
            if self.tp == 1:
                raise SettingsError("sequence parallelism splits the positions over the axis tp, but tp is 1: choose 2 or more.")
        if self.experts:
            axes = "dp × cp" if self.cp > 1 else "dp"
            self._require_divisor(axes, self.replicas, "experts", self.experts, "a data parallel rank holds whole experts")
            if self.fsdp:
                raise SettingsError("experts and fsdp cannot be combined: both shard weights over the data parallel ranks. Choose one.")
        if self.fsdp and self.replicas == 1:
            raise SettingsError("fsdp shards the model over the axis dp, but dp is 1: choose 2 or more.")
        each = self.batch // self.dp
        if self.micro_batches is None:
            most = 2 * self.pp if self.pp > 1 else 1
            object.__setattr__(self, "micro_batches", max(k for k in range(1, most + 1) if each % k == 0))
        if self.micro_batches < 1:
            raise SettingsError(f"micro_batches must be at least 1; got {self.micro_batches}.")
        self._require_divisor(
            "micro_batches", self.micro_batches, "texts of a data parallel rank", each, "all micro-batches have the same size"
        )

    def on(self, ranks: int) -> Settings:
        """Return the settings if there are enough ranks for the grid; raise SettingsError otherwise."""
        if self.mesh.size > ranks:
            axes = " × ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items())
            raise SettingsError(f"{axes} is a grid of {self.mesh.size} ranks, but only {ranks} are running.")
        return self

    def _require_divisor(self, name: str, value: int, other: str, total: int, why: str) -> None:
        if total % value:
            raise SettingsError(f"{name}={value} does not divide {total}, the {other}: {why}.")

    @property
    def mesh(self) -> Mesh:
        """Grid of ranks; tensor parallel ranks are neighbours, as they exchange the most. It has the axis cp only where texts are split."""
        context = {"cp": self.cp} if self.cp > 1 else {}
        return Mesh(dp=self.dp, pp=self.pp, **context, tp=self.tp)

    @property
    def replicas(self) -> int:
        """Number of ranks that see different tokens with the same weights: those along dp and cp."""
        return self.dp * self.cp

    @property
    def sizes(self) -> Sizes:
        """Sizes of the model."""
        return Sizes(VOCABULARY_SIZE, self.width, self.heads, self.depth, self.length)

    @property
    def name(self) -> str:
        """Name of the grid in figures.

        >>> Settings(dp=2, tp=2, sequence=True).name
        'dp 2 × tp 2, sequence parallel'
        >>> Settings(dp=2, cp=4).name
        'dp 2 × cp 4'
        """
        axes = " × ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items() if size > 1) or "one rank"
        more = (self.sequence and "sequence parallel", self.experts and f"{self.experts} experts", self.fsdp and "fully sharded")
        return ", ".join([axes, *filter(None, more)])
