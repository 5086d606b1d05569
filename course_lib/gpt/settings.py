"""What `python -m course_lib.gpt` trains, and on which grid of ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.gpt.model.decoder import Sizes
from course_lib.mesh import Mesh

VOCABULARY_SIZE = 256  # the vocabulary: a token is a byte


class SettingsError(ValueError):
    """These settings do not fit together; the message says which."""


@dataclass(frozen=True)
class Settings:
    """A model, a grid and how long to train.

    Parameters
    ----------
    dp, pp, tp : int
        Ranks of the axes data, pipeline and tensor parallel.
    sequence : bool
        Sequence parallel: the tensor parallel ranks share the positions wherever they do not share heads and columns.
    experts : int
        Experts in place of each block's MLP, shared by the data parallel ranks; 0 for none.
    capacity : float
        The experts' capacity factor, see part 24.
    fsdp : bool
        The data parallel ranks share parameters, gradients and optimizer state.
    schedule : str
        "1f1b" or "gpipe".
    width, heads, depth, length : int
        Of the model, see `Sizes`; `length` is also that of a text in training.
    batch : int
        Texts of a step, over all ranks.
    micro_batches : int, optional
        Into so many a data parallel rank cuts its texts; by default about two for each rank of the pipeline.
    steps : int
    lr : float
        Adam's learning rate; it grows to this in the first steps.
    clip : float
        The most that all gradients together, as one vector, may be long.
    seed : int
        Of the weights and the choice of the texts.

    Raises
    ------
    SettingsError
        They do not fit together.
    """

    dp: int = 1
    pp: int = 1
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
        for name in ("dp", "pp", "tp", "width", "heads", "depth", "length", "batch", "steps"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if self.experts < 0 or self.seed < 0:
            raise SettingsError(f"experts and seed must not be negative; got {self.experts} and {self.seed}.")
        for name in ("lr", "clip", "capacity"):
            if not 1e-12 <= getattr(self, name) < math.inf:  # in float32, less is soon nothing
                raise SettingsError(f"{name} must be a number from 1e-12 upwards; got {getattr(self, name)}.")
        if self.schedule not in ("1f1b", "gpipe"):
            raise SettingsError(f"schedule must be 1f1b or gpipe; got {self.schedule!r}.")
        self._require_divisor("heads", self.heads, "width", self.width, "each head has an equal part of it")
        self._require_divisor("tp", self.tp, "heads", self.heads, "a tensor parallel rank has whole heads")
        self._require_divisor("tp", self.tp, "vocabulary", VOCABULARY_SIZE, "a tensor parallel rank has so many columns of the last matrix")
        self._require_divisor("pp", self.pp, "depth", self.depth, "a stage of the pipeline has whole blocks")
        self._require_divisor("dp", self.dp, "batch", self.batch, "a data parallel rank has whole texts")
        if self.sequence:
            self._require_divisor("tp", self.tp, "length", self.length, "sequence parallel ranks have equal parts of a text")
            if self.tp == 1:
                raise SettingsError("sequence parallel is for the ranks of the axis tp, and tp is 1: choose 2 or more.")
        if self.experts:
            self._require_divisor("dp", self.dp, "experts", self.experts, "a data parallel rank has whole experts")
            if self.fsdp:
                raise SettingsError("experts and fsdp do not go together: both share weights among the data parallel ranks. Choose one.")
        if self.fsdp and self.dp == 1:
            raise SettingsError("fsdp shares the model among the ranks of the axis dp, and dp is 1: choose 2 or more.")
        each = self.batch // self.dp
        if self.micro_batches is None:
            most = 2 * self.pp if self.pp > 1 else 1
            object.__setattr__(self, "micro_batches", max(k for k in range(1, most + 1) if each % k == 0))
        if self.micro_batches < 1:
            raise SettingsError(f"micro_batches must be at least 1; got {self.micro_batches}.")
        self._require_divisor("micro_batches", self.micro_batches, "texts of a data parallel rank", each, "micro-batches are equally large")

    def on(self, ranks: int) -> Settings:
        """Return the settings, if there are ranks enough for their grid."""
        if self.mesh.size > ranks:
            axes = " × ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items())
            raise SettingsError(f"{axes} is a grid of {self.mesh.size} ranks, and {ranks} are up.")
        return self

    def _require_divisor(self, name: str, value: int, other: str, total: int, why: str) -> None:
        if total % value:
            raise SettingsError(f"{name}={value} does not divide {total}, the {other}: {why}.")

    @property
    def mesh(self) -> Mesh:
        """The grid; the tensor parallel ranks are neighbours, as they exchange most."""
        return Mesh(dp=self.dp, pp=self.pp, tp=self.tp)

    @property
    def sizes(self) -> Sizes:
        """Of the model."""
        return Sizes(VOCABULARY_SIZE, self.width, self.heads, self.depth, self.length)

    @property
    def name(self) -> str:
        """How figures name the grid.

        >>> Settings(dp=2, tp=2, sequence=True).name
        'dp 2 × tp 2, sequence parallel'
        """
        axes = " × ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items() if size > 1) or "one rank"
        more = (self.sequence and "sequence parallel", self.experts and f"{self.experts} experts", self.fsdp and "fully sharded")
        return ", ".join([axes, *filter(None, more)])
