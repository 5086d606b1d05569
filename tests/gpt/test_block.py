"""A block that enters again in backward has the same gradients and keeps less; the placements of its parameters."""

import numpy as np

from course_lib import memory
from course_lib.autograd import Tensor
from course_lib.gpt.model.block import Block, kinds
from course_lib.placement import replicated, sharded


def gradients(block, x, grad):
    given = Tensor(x, requires_grad=True)
    with memory.watch() as account:
        out = block(given)
    out.backward(grad)
    return [out.data, given.grad, *(p.grad for p in block.parameters())], account.true_now


def test_a_block_that_enters_again_has_the_same_gradients_and_keeps_less():
    random = np.random.default_rng(3)
    x, grad = random.standard_normal((2, 2, 16, 24))

    def split(x, comm):  # a copy stands for what is gathered
        return Tensor.from_operation(x.data.copy(), (x,), lambda g: (g,))

    blocks = [Block(24, 4, np.random.default_rng(0), None, split, split, again, np.float64) for again in (False, True)]
    (want, kept), (got, less) = (gradients(block, x, grad) for block in blocks)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    assert kept - less >= 2 * x.nbytes * 0.9


def test_kinds_of_a_blocks_parameters():
    block = Block(8, 2, np.random.default_rng(0))
    block.tied = block.up
    found = {name: kind for name, _, kind in kinds(block)}
    assert found["norm1.weight"] == found["norm2.bias"] == replicated
    assert found["qkv.weight"] == found["up.weight"] == sharded(1)
    assert found["out.weight"] == found["down.weight"] == sharded(0)
    assert list(found) != [] and len(found) == 8
