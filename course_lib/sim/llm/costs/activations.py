"""Arrays that a layer keeps from forward to backward, counted as Korthikanti et al., 2022, section 4 does."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.sim.llm.transformer import Transformer

HALF_BYTES = 2  # of a number in 16 bits


def saved_activations(
    model: Transformer, tensor: int = 1, sequence_parallel: bool = False, recompute: str = "none", experts: bool = False
) -> Iterator[tuple[str, float]]:
    """Yield the arrays that a layer keeps for backward, in bytes per position of each text.

    Parameters
    ----------
    model : Transformer
    tensor : int
    sequence_parallel : bool
    recompute : str
    experts : bool
        Whether it is a layer with experts instead of a single MLP.

    Examples
    --------
    >>> sum(nbytes for _, nbytes in saved_activations(Transformer("small", 1, 64, 4, 32))) / 64 == 34 + 5 * 4 * 32 / 64
    True
    """
    m, t = model, tensor
    whole = t if sequence_parallel else 1  # number of ranks that split the arrays that are not split by heads or columns
    if recompute == "full":
        yield "input", HALF_BYTES * m.hidden / whole
        return
    yield "input of the first norm", HALF_BYTES * m.hidden / whole
    yield "input of queries, keys and values", HALF_BYTES * m.hidden / whole
    if m.kv_rank:
        yield "latent vectors", HALF_BYTES * 2 * (m.query_rank + m.kv_rank) / whole
    yield "queries", HALF_BYTES * m.query_width / t
    yield "keys", HALF_BYTES * m.kv_width / t
    yield "values", HALF_BYTES * m.value_width * m.kv_heads / t
    if recompute == "none" and not m.fused:
        yield "probabilities", HALF_BYTES * m.heads * m.sequence / t
        if m.dropout:
            yield "mask of the probabilities", m.heads * m.sequence / t
            yield "probabilities after dropout", HALF_BYTES * m.heads * m.sequence / t
    yield "input of the projection", HALF_BYTES * m.output_width / t
    if m.dropout:
        yield "mask after attention", m.hidden / whole
    yield "input of the second norm", HALF_BYTES * m.hidden / whole
    yield "input of the MLP", HALF_BYTES * m.hidden / whole
    if experts:
        yield from _saved_by_experts(m, t)
    else:
        yield "input of the nonlinearity", HALF_BYTES * m.up_width / t
        yield "input of the MLP's last matrix", HALF_BYTES * m.feed_forward / t
    if m.dropout:
        yield "mask after the MLP", m.hidden / whole


def _saved_by_experts(m: Transformer, t: int) -> Iterator[tuple[str, float]]:
    visits = m.top_k * (m.capacity or 1.0) / t
    up = m.expert_feed_forward * (2 if m.gated else 1)
    yield "scores of the experts", 4 * m.experts / t
    yield "inputs of the experts", HALF_BYTES * visits * m.hidden
    yield "inputs of the experts' nonlinearity", HALF_BYTES * visits * up
    yield "inputs of the experts' last matrix", HALF_BYTES * visits * m.expert_feed_forward
    yield "outputs of the experts", HALF_BYTES * visits * m.hidden
    if m.shared_experts:
        yield "inside the shared experts", HALF_BYTES * m.shared_experts * (up + m.expert_feed_forward) / t
