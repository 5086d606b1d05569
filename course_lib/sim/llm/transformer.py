"""Language model as numbers: its sizes, parameters and FLOP."""

from __future__ import annotations

from dataclasses import dataclass

MAX_DIMENSION = 10_000_000  # of any dimension


@dataclass(frozen=True)
class Transformer:
    """A stack of transformer layers between an embedding and an output matrix.

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
        Whether attention is a single operation that never writes its scores to memory, nor computes those that the mask removes (Dao et
        al., 2022, "FlashAttention").
    dropout : bool
    tied : bool
        Whether the output matrix is the embedding, rather than one of its own.
    head_width : int, optional
        Width of a head's queries and keys, and of its values unless `value_width` says otherwise; by default ``hidden / heads``.
    value_width : int, optional
        Width of a head's values; by default `head_width`.
    query_rank, kv_rank, rotary_width : int
        Multi-head latent attention (DeepSeek-AI, 2024, "DeepSeek-V2", section 2.1): widths of the vectors that queries, and keys with
        values, are computed from, and how much of `head_width` carries the position, shared by all keys; 0 for attention without it.
        Without `query_rank`, queries are computed from the position itself.
    experts, top_k : int
        Number of experts of a layer, and how many of them each position visits (Shazeer et al., 2017); 0 for a single MLP.
    shared_experts : int
        Experts that all positions visit, besides.
    expert_feed_forward : int, optional
        Width inside an expert; by default `feed_forward`.
    dense_layers : int
        How many of the first layers have a single MLP all the same.
    capacity : float
        Most positions that an expert accepts relative to a fair share, which it is then padded to (Lepikhin et al., 2020, "GShard"); 0 if
        none is dropped: the simulator then takes positions as shared out fairly.
    nodes_per_position : int
        Most nodes that a position's experts may be in (DeepSeek-AI, 2024, "DeepSeek-V3", section 2.1.2); 0 for any.
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
    tied: bool = True
    head_width: int | None = None
    value_width: int | None = None
    query_rank: int = 0
    kv_rank: int = 0
    rotary_width: int = 0
    experts: int = 0
    top_k: int = 0
    shared_experts: int = 0
    expert_feed_forward: int | None = None
    dense_layers: int = 0
    capacity: float = 0.0
    nodes_per_position: int = 0

    def __post_init__(self):
        for name in ("gated", "fused", "dropout", "tied"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False; got {getattr(self, name)!r}.")
        for name in ("layers", "hidden", "heads"):
            self._require_whole(name, 1)
        derived = {"feed_forward": 4 * self.hidden, "kv_heads": self.heads}
        if self.head_width is None and self.hidden % self.heads:
            raise ValueError(f"heads={self.heads} does not divide hidden={self.hidden}.")
        for name, default in (derived | {"head_width": self.hidden // self.heads}).items():
            self._default(name, default)
        self._default("value_width", self.head_width)
        self._default("expert_feed_forward", self.feed_forward)
        for name in ("sequence", "vocabulary", "batch", "feed_forward", "kv_heads", "head_width", "value_width", "expert_feed_forward"):
            self._require_whole(name, 1)
        whole = ("query_rank", "kv_rank", "rotary_width", "experts", "top_k", "shared_experts", "dense_layers", "nodes_per_position")
        for name in whole:
            self._require_whole(name, 0)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}.")
        self._check_experts()

    def _check_experts(self) -> None:
        if self.rotary_width >= self.head_width or ((self.rotary_width or self.query_rank) and not self.kv_rank):
            wrong = f"rotary_width={self.rotary_width}, query_rank={self.query_rank} and kv_rank={self.kv_rank}"
            raise ValueError(f"latent attention needs a kv_rank, and a rotary_width less than head_width={self.head_width}; got {wrong}.")
        if self.experts and not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k must be a whole number from 1 to experts={self.experts}; got {self.top_k!r}.")
        others = ("top_k", "shared_experts", "dense_layers", "capacity", "nodes_per_position")
        if not self.experts and any(getattr(self, name) for name in others):
            raise ValueError(f"{next(name for name in others if getattr(self, name))} needs experts, but experts is 0.")
        if self.experts and self.dense_layers >= self.layers:
            raise ValueError(f"dense_layers must be fewer than layers={self.layers}; got {self.dense_layers}.")
        if isinstance(self.capacity, bool) or not (self.capacity == 0 or 1 <= self.capacity <= max(self.experts, 1)):
            raise ValueError(f"capacity must be 0, or from 1 to experts={self.experts}; got {self.capacity!r}.")

    def _default(self, name: str, value: int) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _require_whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_DIMENSION:
            raise ValueError(f"{name} must be a whole number from {least} to {MAX_DIMENSION:,}; got {value!r}.")

    @property
    def query_width(self) -> int:
        """Width of the queries of a position, all heads together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of the keys of a position, and of its values."""
        return self.head_width * self.kv_heads

    @property
    def output_width(self) -> int:
        """Width of attention's output before its projection."""
        return self.heads * self.value_width

    @property
    def up_width(self) -> int:
        """Columns of the MLP's first matrix, or of its first two if gated."""
        return self.feed_forward * (2 if self.gated else 1)

    @property
    def expert_layers(self) -> int:
        """Number of layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    def attention_matrices(self) -> int:
        """Number of values in the matrices of a layer's attention."""
        h, out = self.hidden, self.output_width
        if not self.kv_rank:
            return h * (self.query_width + 2 * self.kv_width + out)
        queries = self.query_rank * (h + self.query_width) if self.query_rank else h * self.query_width
        without_position = self.head_width - self.rotary_width
        keys = h * (self.kv_rank + self.rotary_width) + self.kv_rank * self.heads * (without_position + self.value_width)
        return queries + keys + h * out

    def mlp_matrices(self) -> int:
        """Number of values in the matrices of a single MLP."""
        return self.hidden * (self.up_width + self.feed_forward)

    def expert_matrices(self) -> int:
        """Number of values in the matrices of an expert."""
        return self.hidden * self.expert_feed_forward * (3 if self.gated else 2)

    def layer_matrices(self) -> int:
        """Number of values in the matrices of a layer with a single MLP.

        >>> GPT_175B.layer_matrices() == 12 * 12288**2
        True
        """
        return self.attention_matrices() + self.mlp_matrices()

    def layer_parameters(self) -> int:
        """Parameters of a layer with a single MLP: its matrices, and the scales of its two norms."""
        return self.layer_matrices() + 2 * self.hidden

    def parameters(self, active: bool = False) -> int:
        """Parameters of the model, or only those that a position meets: `top_k` of the experts.

        >>> round(GPT_175B.parameters() / 1e9, 1), round(MODEL_PRESETS["70b"].parameters() / 1e9, 1)
        (174.6, 69.0)
        >>> mixtral = MODEL_PRESETS["mixtral-8x7b"]
        >>> [round(mixtral.parameters(active) / 1e9, 1) for active in (False, True)]
        [46.7, 12.9]
        """
        met = self.top_k if active else self.experts
        experts = (met + self.shared_experts) * self.expert_matrices() + self.hidden * self.experts
        with_experts = self.attention_matrices() + experts + 2 * self.hidden
        ends = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return (self.layers - self.expert_layers) * self.layer_parameters() + self.expert_layers * with_experts + ends

    def flop(self) -> float:
        """FLOP of a training step that the model needs, independent of the method: forward, and twice as many backward.

        The matrices take 2 FLOP per number and position that meets it. Attention's scores are counted without a mask, as in Megatron-LM
        (Narayanan et al., 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", appendix), unless
        attention is fused: then only half of them exist.

        >>> from dataclasses import replace
        >>> round(replace(GPT_175B, batch=64).flop() / 1e15)
        141
        """
        met = (self.top_k + self.shared_experts) * self.expert_matrices() + self.hidden * self.experts
        matrices = self.layers * self.attention_matrices() + (self.layers - self.expert_layers) * self.mlp_matrices()
        matrices += self.expert_layers * met + self.hidden * self.vocabulary
        scores = self.layers * self.sequence * (self.query_width + self.output_width) * (0.5 if self.fused else 1.0)
        return 3.0 * self.batch * self.sequence * 2 * (matrices + scores)


# Korthikanti et al., 2022, table 3.
GPT_22B = Transformer("22B", 48, 6144, 64)
GPT_175B = Transformer("175B", 96, 12288, 96)
GPT_530B = Transformer("530B", 105, 20480, 128)
GPT_1T = Transformer("1T", 128, 25600, 160)

_LLAMA_STYLE = dict(gated=True, fused=True, dropout=False, tied=False)
_EXPERTS = _LLAMA_STYLE | dict(sequence=4096)
MODEL_PRESETS = {
    "22b": GPT_22B,
    "175b": GPT_175B,
    "530b": GPT_530B,
    "1t": GPT_1T,
    # Llama 2 and 3 (Touvron et al., 2023; Grattafiori et al., 2024).
    "7b": Transformer("7B", 32, 4096, 32, 4096, 32000, 1024, 11008, **_LLAMA_STYLE),
    "8b": Transformer("8B", 32, 4096, 32, 8192, 128256, 1024, 14336, kv_heads=8, **_LLAMA_STYLE),
    "13b": Transformer("13B", 40, 5120, 40, 4096, 32000, 1024, 13824, **_LLAMA_STYLE),
    "70b": Transformer("70B", 80, 8192, 64, 4096, 32000, 1024, 28672, kv_heads=8, **_LLAMA_STYLE),
    "405b": Transformer("405B", 126, 16384, 128, 8192, 128256, 2048, 53248, kv_heads=8, **_LLAMA_STYLE),
    # Jiang et al., 2024, "Mixtral of experts", table 1, and the model of the same family with 22 billion parameters an expert.
    "mixtral-8x7b": Transformer(
        "Mixtral 8x7B", 32, 4096, 32, vocabulary=32000, batch=1024, feed_forward=14336, kv_heads=8, experts=8, top_k=2, **_EXPERTS
    ),
    "mixtral-8x22b": Transformer(
        "Mixtral 8x22B", 56, 6144, 48, vocabulary=32768, batch=1024, feed_forward=16384, kv_heads=8, experts=8, top_k=2, **_EXPERTS
    ),
    # DeepSeek-AI, 2024, "DeepSeek-V3", section 4.2, without the module that predicts a second token.
    "deepseek-v3": Transformer(
        "DeepSeek-V3",
        layers=61,
        hidden=7168,
        heads=128,
        vocabulary=129280,
        batch=15360,
        feed_forward=18432,
        head_width=192,
        value_width=128,
        query_rank=1536,
        kv_rank=512,
        rotary_width=64,
        experts=256,
        top_k=8,
        shared_experts=1,
        expert_feed_forward=2048,
        dense_layers=3,
        nodes_per_position=4,
        **_EXPERTS,
    ),
    # Yang et al., 2025, "Qwen3 technical report", table 2.
    "qwen3-235b": Transformer(
        "Qwen3 235B-A22B",
        layers=94,
        hidden=4096,
        heads=64,
        vocabulary=151936,
        batch=4096,
        feed_forward=12288,
        kv_heads=4,
        head_width=128,
        experts=128,
        top_k=8,
        expert_feed_forward=1536,
        **_EXPERTS,
    ),
}
