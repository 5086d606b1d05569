"""Language model as numbers: its sizes, parameters and FLOP."""

from __future__ import annotations

from dataclasses import dataclass

MAX_DIMENSION = 10_000_000  # of any dimension


@dataclass(frozen=True)
class Transformer:
    """A stack of identical transformer layers between an embedding and an output matrix.

    Parameters
    ----------
    name : str
    layers, hidden, heads, sequence, vocabulary : int
        `hidden` is the width of a position, `sequence` the number of positions in a text.
    batch : int
        Texts per training step.
    feed_forward : int, optional
        Width inside the MLP; by default four times `hidden`.
    gated : bool
        Whether the MLP has a third matrix that gates the first one's outputs (Shazeer, 2020, "GLU variants improve transformer").
    kv_heads : int, optional
        Number of key and value heads; by default the number of query heads (Ainslie et al., 2023, "GQA").
    fused : bool
        Whether attention is a single operation that never writes its scores to memory (Dao et al., 2022, "FlashAttention").
    dropout : bool
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int = 2048
    vocabulary: int = 51200
    batch: int = 512
    feed_forward: int | None = None
    gated: bool = False
    kv_heads: int | None = None
    fused: bool = False
    dropout: bool = True

    def __post_init__(self):
        for name, default in (("feed_forward", 4 * self.hidden), ("kv_heads", self.heads)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        for name in ("gated", "fused", "dropout"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False; got {getattr(self, name)!r}.")
        for name in ("layers", "hidden", "heads", "sequence", "vocabulary", "batch", "feed_forward", "kv_heads"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_DIMENSION:
                raise ValueError(f"{name} must be a whole number from 1 to {MAX_DIMENSION:,}; got {value!r}.")
        for name, value, of, whole in (("heads", self.heads, "hidden", self.hidden), ("kv_heads", self.kv_heads, "heads", self.heads)):
            if whole % value:
                raise ValueError(f"{name}={value} does not divide {of}={whole}.")

    @property
    def kv_width(self) -> int:
        """Width of the keys of a position, and of its values."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def up_width(self) -> int:
        """Columns of the MLP's first matrix, or of its first two if gated."""
        return self.feed_forward * (2 if self.gated else 1)

    def layer_matrices(self) -> int:
        """Number of values in the matrices of a layer.

        >>> GPT_175B.layer_matrices() == 12 * 12288**2
        True
        """
        return self.hidden * (2 * self.hidden + 2 * self.kv_width + self.up_width + self.feed_forward)

    def layer_parameters(self) -> int:
        """Parameters of a layer: its matrices, and the scales of its two norms."""
        return self.layer_matrices() + 2 * self.hidden

    def parameters(self) -> int:
        """Parameters of the model; the output matrix is tied to the embedding.

        >>> round(GPT_175B.parameters() / 1e9, 1), round(MODEL_PRESETS["70b"].parameters() / 1e9, 1)
        (174.6, 68.7)
        """
        return self.layers * self.layer_parameters() + self.vocabulary * self.hidden

    def flop(self) -> float:
        """FLOP of a training step that the model needs, independent of the method: forward, and twice as many backward.

        The matrices take 2 FLOP per number and position, and attention's scores are counted without a mask, as in Megatron-LM (Narayanan
        et al., 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", appendix).

        >>> from dataclasses import replace
        >>> round(replace(GPT_175B, batch=64).flop() / 1e15)
        141
        """
        layer = 2 * self.layer_matrices() + 4 * self.sequence * self.hidden
        return 3.0 * self.batch * self.sequence * (self.layers * layer + 2 * self.hidden * self.vocabulary)


# Korthikanti et al., 2022, table 3.
GPT_22B = Transformer("22B", 48, 6144, 64)
GPT_175B = Transformer("175B", 96, 12288, 96)
GPT_530B = Transformer("530B", 105, 20480, 128)
GPT_1T = Transformer("1T", 128, 25600, 160)

_LLAMA_STYLE = dict(gated=True, fused=True, dropout=False)
MODEL_PRESETS = {
    "22b": GPT_22B,
    "175b": GPT_175B,
    "530b": GPT_530B,
    "1t": GPT_1T,
    # Llama 2 and 3 (Touvron et al., 2023; Grattafiori et al., 2024), with the output matrix tied to the embedding.
    "7b": Transformer("7B", 32, 4096, 32, 4096, 32000, 1024, 11008, **_LLAMA_STYLE),
    "8b": Transformer("8B", 32, 4096, 32, 8192, 128256, 1024, 14336, kv_heads=8, **_LLAMA_STYLE),
    "13b": Transformer("13B", 40, 5120, 40, 4096, 32000, 1024, 13824, **_LLAMA_STYLE),
    "70b": Transformer("70B", 80, 8192, 64, 4096, 32000, 1024, 28672, kv_heads=8, **_LLAMA_STYLE),
    "405b": Transformer("405B", 126, 16384, 128, 8192, 128256, 2048, 53248, kv_heads=8, **_LLAMA_STYLE),
}
