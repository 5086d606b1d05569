"""A text's positions on several ranks: settings, embeddings, and what an attention on a ring is given. The losses are in tests/solved."""

import numpy as np
import pytest

from course_lib.autograd import Parameter, Tensor
from course_lib.autograd.block_attention import positions
from course_lib.autograd.functional import attention
from course_lib.gpt.model import build_model
from course_lib.gpt.model.block import Block
from course_lib.gpt.model.decoder import Embed, Sizes
from course_lib.gpt.settings import Settings, SettingsError
from course_lib.gpt.training.clipping import SamePlacement, clip_whole
from course_lib.placement import replicated

SIZES = Sizes(vocabulary=7, width=8, heads=2, depth=1, length=8)


def test_a_grid_has_the_axis_cp_only_where_texts_are_split():
    assert list(Settings(dp=2, tp=2).mesh.shape) == ["dp", "pp", "tp"]
    settings = Settings(dp=2, cp=2, tp=2)
    assert list(settings.mesh.shape) == ["dp", "pp", "cp", "tp"] and settings.mesh.size == 8 and settings.replicas == 4
    assert Settings(cp=2, fsdp=True).replicas == 2


@pytest.mark.parametrize(
    "sizes, said",
    [
        (dict(cp=2, length=6), "2 × cp=4 does not divide 6, the length"),
        (dict(cp=2, tp=4, sequence=True, length=12), "tp=4 does not divide 6, the positions of a context parallel rank"),
        (dict(dp=2, cp=2, experts=2), "dp × cp=4 does not divide 2, the experts"),
        (dict(cp=0), "cp must be at least 1"),
    ],
)
def test_sizes_that_do_not_fit_get_a_sentence(sizes, said):
    with pytest.raises(SettingsError, match=said):
        Settings(**sizes)


def test_tokens_are_embedded_with_their_own_positions():
    tokens, at = np.random.default_rng(1).integers(0, 7, (2, 8)), positions([1, 2], 2)
    whole, part = Embed(SIZES, np.random.default_rng(0)), Embed(SIZES, np.random.default_rng(0), positions=at)
    out = part(tokens[:, at])
    assert np.array_equal(out.data, whole(tokens).data[:, at])
    out.backward(np.ones(out.shape, out.dtype))
    assert np.flatnonzero(part.places.grad[:, 0]).tolist() == at.tolist()


def test_an_attention_on_a_ring_gets_arrays_that_can_be_sent():
    seen = []

    def ring(q, k, v, comm):
        seen.extend(x.data.flags.c_contiguous for x in (q, k, v))
        out = attention(q, k, v)
        return Tensor.from_operation(out.data, (out,), lambda grad: (seen.append(grad.flags.c_contiguous), grad)[1:])

    def core(q, k, v):
        return build_model._context_parallel_attention(ring, None, q, k, v)

    x, outs = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32), []
    for more in ({}, dict(core_attention=core)):
        block = Block(8, 2, np.random.default_rng(0), **more)
        out = block(Tensor(x))
        out.backward(np.ones_like(x))
        outs.append((out.data, block.qkv.weight.grad))
    assert seen == [True] * 4
    for one, other in zip(*outs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_rank_with_all_gradients_clips_them_alone():
    p = Parameter(np.zeros(2))
    p.grad = np.array([3.0, 4.0])
    module = SamePlacement(replicated, [p, Parameter(np.zeros(1))])
    assert clip_whole(module, 10.0, None) == 5.0 and p.grad.tolist() == [3.0, 4.0]
    assert clip_whole(module, 1.0, None) == 5.0 and np.allclose(p.grad, [0.6, 0.8])
