"""Training with a flat array of parameters, and means that are sent as int8."""

import numpy as np
import pytest
from mpi4py import MPI

from course_lib.autograd import Sequential
from course_lib.collectives import Communicator
from course_lib.gpt.fsdp import FlatModel, quantized
from course_lib.gpt.model import Sizes, layers, loss_of
from course_lib.gpt.text import sample_batch

SIZES = Sizes(vocabulary=256, width=16, heads=2, depth=1, length=8)


@pytest.fixture
def alone():
    return Communicator(MPI.COMM_SELF)


def test_a_flat_model_has_the_losses_and_gradients_of_its_layers(alone):
    model, plain = FlatModel(alone, sizes=SIZES), Sequential(*layers(SIZES))
    model.set(np.float32(1.5) * model.whole())
    for p in plain.parameters():
        p.data = np.float32(1.5) * p.data
    loss = model.loss(3)
    wanted = loss_of(*(f(a) for f, a in zip((plain, np.asarray), sample_batch(model.text, 3, 4, SIZES.length, 0), strict=True)))
    loss.backward(), wanted.backward()
    assert loss.item() == wanted.item()
    assert np.array_equal(model.gradient(), model.flat.join([p.grad for p in plain.parameters()]))
    assert np.array_equal(model.shard(), model.whole()) and not np.shares_memory(model.shard(), model.whole())


def test_with_error_feedback_nothing_is_lost_in_the_long_run(alone):
    values = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    gap = {}
    for feedback in (False, True):
        mean = quantized.QuantizedMean(alone, levels=1, feedback=feedback)
        gap[feedback] = np.abs(np.sum([mean(values) for _ in range(200)], axis=0) / 200 - values).max()
    assert gap[True] < 0.05 < 0.5 < gap[False]


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_a_mean_is_off_by_no_more_than_its_rounding(alone, levels):
    values = np.random.default_rng(levels).standard_normal(2 * quantized.BLOCK).astype(np.float32)
    found = quantized.QuantizedMean(alone, levels, feedback=False)(values)
    scales = np.repeat(np.abs(values.reshape(2, -1)).max(axis=1), quantized.BLOCK) / levels
    assert np.all(np.abs(found - values) <= 1.01 * scales / 2 * (1 + 1 / levels))
    zeros = np.zeros(quantized.BLOCK, np.float32)
    assert np.array_equal(quantized.QuantizedMean(alone)(zeros), zeros)
