"""The solved functions of parts 21 to 24, as they are saved: on the course's communicator and on bare MPI, to the last bit alike."""

import importlib.util

import numpy as np
import pytest

from course_lib.cluster import Ranks
from grading.authoring import reference

STEPS = """
import numpy as np
from mpi4py import MPI

from course_lib import students
from course_lib.autograd import Tensor
from course_lib.collectives import Communicator
from course_lib.gpt.model.block import Block
from course_lib.gpt.model.experts import MixtureOfExperts

own = students.load(FOLDER)


def steps(comm):
    n, rank, random = comm.Get_size(), comm.Get_rank(), np.random.default_rng(0)
    x, grad = random.standard_normal((2, 2, 8, 16))
    ways = {"whole": (own.copy_to_group, own.reduce_from_group, x, grad)}
    mine = [np.ascontiguousarray(np.split(a, n, axis=1)[rank]) for a in (x, grad)]
    ways["sharded"] = (own.gather_sequence, own.scatter_sequence, *mine)
    found = {}
    for name, (enter, leave, x_here, grad_here) in ways.items():
        block = Block(16, 4, np.random.default_rng(1), comm, enter, leave, dtype=np.float64)
        given = Tensor(x_here, requires_grad=True)
        out = block(given)
        out.backward(grad_here)
        if name == "sharded":
            own.reduce_norm_gradients(block, comm)
        found[name] = [out.data, given.grad, np.array(own.clip_gradients(block, 0.5, comm)), *(p.grad for p in block.parameters())]
    logits = Tensor(random.standard_normal((2, 8, 5)) * (rank + 1), requires_grad=True)
    loss = own.vocab_parallel_cross_entropy(logits, random.integers(0, 5 * n, (2, 8)), comm)
    loss.backward()
    found["loss"] = [loss.data, logits.grad]
    qkv = [Tensor(a, requires_grad=True) for a in np.random.default_rng(rank).standard_normal((3, 2, 2, 4, 3))]
    out = own.ring_attention(*qkv, comm)
    out.backward(np.ones(out.shape))
    found["ring"] = [out.data, *(t.grad for t in qkv)]
    layer, tokens = MixtureOfExperts(own, comm, 6, 8, 8, topk=2, dtype=np.float64), Tensor(x_here[0, :, :6].copy(), requires_grad=True)
    out = layer(tokens)
    (out.sum() + layer.balance).backward()
    found["experts"] = [out.data, tokens.grad, *(p.grad for p in layer.parameters())]
    return found


checked, bare = steps(Communicator()), steps(MPI.COMM_WORLD)
"""


DRIFT = """
from course_lib import students
from course_lib.collectives import Communicator
from course_lib.gpt.training import drift

own, comm = students.load(FOLDER), Communicator()
settings = dict(steps=8, width=8, tokens=(2, 8))


def reduce(module):
    own.reduce_norm_gradients(module, comm)


runs = {
    "f": drift.train_blocks(own.copy_to_group, own.reduce_from_group, comm, **settings),
    "broken f": drift.train_blocks(lambda x, comm: x, own.reduce_from_group, comm, **settings),
    "reduced": drift.train_blocks(own.gather_sequence, own.scatter_sequence, comm, split=True, after_backward=reduce, **settings),
    "partial": drift.train_blocks(own.gather_sequence, own.scatter_sequence, comm, split=True, **settings),
}
"""

BESIDE_TORCH = """
from functools import partial

import numpy as np

from course_lib import students
from course_lib.autograd import Tensor
from course_lib.collectives import Communicator
from course_lib.gpt import pytorch
from course_lib.gpt.fsdp import profile
from course_lib.gpt.model import Block, Sizes, layers

own, comm = students.load(FOLDER), Communicator()
x = Tensor(np.random.default_rng(0).random((2, 8, 16)), requires_grad=True)
block = Block(16, 4, np.random.default_rng(1), comm, own.copy_to_group, own.reduce_from_group, dtype=np.float64)
out = block(x)
out.backward(x.data)
ours = {"output": out.data, "its input's gradient": x.grad} | {name: p.grad for name, p in block.named_parameters()}
theirs = pytorch.tensor_parallel_block(x.data, x.data, comm, heads=4, seed=1)
make = partial(layers, Sizes(vocabulary=16, width=8, heads=2, depth=2, length=8))
tokens = np.random.default_rng(comm.Get_rank()).integers(0, 16, (2, 8))
beside = pytorch.train_fully_sharded(make, comm, tokens)
sharded = profile.train(own.FullyShardedDataParallel, make, comm, tokens)["losses"], beside["losses"]
"""


def test_ranks_drift_apart_where_a_partial_gradient_is_taken_for_whole(tmp_path):
    reference.write(tmp_path)
    ranks = Ranks(4)
    try:
        found = ranks.run(DRIFT.replace("FOLDER", repr(str(tmp_path))), limit=120.0)
        assert not [reply["error"] for _, reply in found if reply["error"]]
        runs = ranks.pull("runs")[0]
    finally:
        ranks.stop()
    np.testing.assert_allclose(runs["reduced"]["losses"], runs["f"]["losses"], rtol=1e-3)  # the same training, split in two ways
    for name in ("f", "reduced"):
        assert max(runs[name]["apart"]) == 0 and runs[name]["loss"] == runs[name]["loss_of_rank_0"]
    for name in ("broken f", "partial"):
        assert runs[name]["apart"][-1] > 0.02 and runs[name]["losses"][-1] < runs[name]["losses"][0]
        assert runs[name]["loss"] != runs[name]["loss_of_rank_0"]


if importlib.util.find_spec("torch"):  # where it is not, conftest.py says so

    @pytest.mark.slow
    def test_tensor_parallelism_and_fsdp_agree_with_pytorchs(tmp_path):
        reference.write(tmp_path)
        ranks = Ranks(4)
        try:
            found = ranks.run(BESIDE_TORCH.replace("FOLDER", repr(str(tmp_path))), limit=300.0)
            assert not [reply["error"] for _, reply in found if reply["error"]]
            for ours, theirs, losses in zip(*(ranks.pull(name) for name in ("ours", "theirs", "sharded")), strict=True):
                assert set(ours) == set(theirs)
                for name, array in ours.items():
                    np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-12, err_msg=name)
                np.testing.assert_allclose(*losses, rtol=1e-5)
        finally:
            ranks.stop()


def test_on_the_courses_communicator_and_on_bare_mpi(tmp_path):
    reference.write(tmp_path)
    ranks = Ranks(4)
    try:
        found = ranks.run(STEPS.replace("FOLDER", repr(str(tmp_path))), limit=120.0)
        assert not [reply["error"] for _, reply in found if reply["error"]]
        for checked, bare in zip(ranks.pull("checked"), ranks.pull("bare"), strict=True):
            assert set(checked) == {"whole", "sharded", "loss", "ring", "experts"}
            for name, arrays in checked.items():
                for one, other in zip(arrays, bare[name], strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12, err_msg=name)
        whole, sharded = [[rank[name] for rank in ranks.pull("checked")] for name in ("whole", "sharded")]
        for i in (0, 1):  # output and gradient of the input: the same block, cut in two ways
            together = np.concatenate([rank[i] for rank in sharded], axis=1)
            np.testing.assert_allclose(together, whole[0][i], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose([rank[2] for rank in sharded], [rank[2] for rank in whole], rtol=1e-9)
    finally:
        ranks.stop()
