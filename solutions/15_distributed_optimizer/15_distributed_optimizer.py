# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 15 A distributed optimizer, and ResNet-9
#
# **You will build** `partition_dataset`, `broadcast_parameters` and `DistributedOptimizer`, and train a convolutional network with them.
#
# *{points} points. About 60 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.datasets import images
from course_lib.check.data.optimizer import OptimizerCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from tqdm import tqdm

from course_lib.datasets import images
from course_lib.training import resnet
from course_lib.autograd import SGD, ArrayDataset, DataLoader, DataPartitioner, Linear, Sequential, cross_entropy
from course_lib.collectives import init

comm = everyone = init()
data = images.load("shapes")

# %% Draw some images tags=["folded", "slide"]
x, y = images.shapes(60)
first = [int(np.flatnonzero(y == kind)[0]) for kind in range(10)]
plots.images(x[first], images.SHAPES, "Ten classes of drawn shapes")

# %% [markdown] tags=["slide"]
# In parts 13 and 14, a wrapper around the *model* averaged the gradients. Here we wrap the *optimizer* instead. That is Horovod's interface
# (Sergeev and Del Balso, 2018, "Horovod: fast and easy distributed deep learning in TensorFlow", sections 4 and 5); Horovod starts its
# all-reduces during `backward`, ours wait for `step`. The training loop stays as it was, except for three more lines.
#
# Two things have the same name. Megatron-LM's "distributed optimizer" shards the optimizer's state, which is ZeRO-1 (part 09). Here every
# rank keeps all of the state; nothing is sharded.
#
# A short calculation shows why the result is the same as with the whole batch on one rank.
#
# Let $L = \frac1N \sum_{i=1}^N \ell_i$ be the mean loss of a batch. Cut the batch into parts $B_0, \dots, B_{n-1}$, where part $B_r$ has
# $N_r$ samples, and let $L_r = \frac1{N_r} \sum_{i \in B_r} \ell_i$ be its mean loss. The gradient of a sum is the sum of the gradients, so
#
# $$ \nabla L = \frac1N \sum_r \sum_{i \in B_r} \nabla \ell_i = \sum_r \frac{N_r}{N}\, \nabla L_r,
# \qquad\text{and if all } N_r = \tfrac Nn:\qquad \nabla L = \frac1n \sum_r \nabla L_r. $$
#
# So when all parts have the same size, the gradient of the batch is the mean of the parts' gradients. When the sizes differ, a plain mean
# is wrong: a sample in a small part would count more than a sample in a large one.
#
# ## A worked example
#
# Here is a batch of 24 samples, cut into equal parts and into unequal ones. If you multiply each part's gradient by $N_r n / N$ before
# taking the mean, is the result right again?


# %% Equal and unequal parts tags=["slide"]
# %%px
def off(parts, weighted):
    """Return the relative error of the mean of the parts' gradients."""
    random = np.random.default_rng(0)
    x, y = random.standard_normal((24, 6)), random.integers(0, 3, 24)
    w = random.standard_normal((6, 3))
    grads, ends, rank = [], np.cumsum(parts), comm.Get_rank()
    for rows in (slice(None), slice(ends[rank] - parts[rank], ends[rank])):
        model = Linear(6, 3, bias=False, dtype=float)
        model.weight.data = w
        cross_entropy(model(x[rows]), y[rows]).backward()
        grads.append(model.weight.grad)
    mean = np.empty((6, 3))
    comm.Allreduce(grads[1] * (parts[rank] * 4 / 24 if weighted else 1), mean)
    return np.abs(mean / 4 - grads[0]).max() / np.abs(grads[0]).max()


equal, unequal = (6, 6, 6, 6), (12, 6, 4, 2)
print(f"parts of 6, 6, 6, 6:            off by {off(equal, weighted=False):.1e}")
print(f"parts of 12, 6, 4, 2:           off by {off(unequal, weighted=False):.1e}")
print(f"parts of 12, 6, 4, 2, weighted: off by {off(unequal, weighted=True):.1e}")

# %% [markdown] tags=["slide-50"]
# ## Your turn: divide the data
#
# `DataPartitioner(dataset, fractions, seed)` shuffles the data set and cuts it; `.use(i)` is part number i, itself a data set. The seed
# must be the same on all ranks. Each part is rounded down to whole samples. Before you run the cells: how many of 32 samples does each of
# the four parts get, and how many are in no part?

# %% Four parts
# %%px
samples = ArrayDataset(np.arange(32), np.arange(32))
mine = DataPartitioner(samples, [0.4, 0.3, 0.2, 0.1]).use(comm.Get_rank()).x

# %% Draw the parts tags=["folded", "slide-50"]
plots.holdings(
    np.arange(32).reshape(4, 8),
    ranks.pull("mine"),
    "32 samples, split 0.4, 0.3, 0.2 and 0.1: two are left over",
    ("rows", "samples in a row"),
)


# %% Exercise: partition_dataset tags=["exercise", "slide-50"]
# %%px
def partition_dataset(dataset, batch_size):
    """Return a loader for this rank's part of a data set.

    The data set is shuffled, in the same way on all ranks, and cut into
    ``comm.Get_size()`` equal parts. Samples left over are in no part.

    Parameters
    ----------
    dataset : ArrayDataset
        The same on all ranks.
    batch_size : int
        Samples per step over all ranks; a multiple of the number of ranks.

    Returns
    -------
    DataLoader
        Yields each sample of this rank's part once per epoch, in a different order each
        epoch. A batch has this rank's share of `batch_size`; the last one may be
        smaller.
    """
    ### BEGIN SOLUTION
    size = comm.Get_size()
    part = DataPartitioner(dataset, [1 / size] * size).use(comm.Get_rank())
    return DataLoader(part, batch_size // size, shuffle=True)
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: start from one model


# %% Exercise: broadcast_parameters tags=["exercise"]
# %%px
def broadcast_parameters(model, root_rank=0):
    """Copy the parameters of one rank to all ranks of `comm`.

    Parameters
    ----------
    model : Module
        The values are in ``p.data`` for each p in ``model.parameters()``.
    root_rank : int
        The rank whose parameters are copied.
    """
    ### BEGIN SOLUTION
    for p in model.parameters():
        comm.Bcast(p.data, root=root_rank)
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: step together


# %% Exercise: DistributedOptimizer tags=["exercise", "slide-50"]
# %%px
class DistributedOptimizer:
    """An optimizer that steps with gradients averaged over all ranks of `comm`.

    Parameters
    ----------
    opt : Optimizer
        SGD or Adam; it has `params`, `zero_grad()` and `step()`. A parameter whose
        ``grad`` is None has no gradient in this step, on any rank.

    Notes
    -----
    A step sends at most what all-gathers of the gradients send, and 64 bytes. It makes
    at most 8 calls of ``comm`` for a parameter.
    """

    def __init__(self, opt):
        self.opt = opt

    def zero_grad(self):
        """Clear all gradients."""
        self.opt.zero_grad()

    def step(self):
        """Average each gradient over the ranks, then take the step."""
        ### BEGIN SOLUTION
        for p in self.opt.params:
            if p.grad is not None:
                mean = np.empty_like(p.grad)
                comm.Allreduce(p.grad, mean)
                mean /= comm.Get_size()
                p.grad = mean
        self.opt.step()
        ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?

# %% Check tags=["given"]
check = OptimizerCheck("partition_dataset, broadcast_parameters and DistributedOptimizer", ranks)
check.partition(40, 8, 4)
check.broadcast(4, 2)
check.optimizer(4, "SGD")
check.passed()

# %% [markdown] tags=["slide-50"]
# ## ResNet-9
#
# This is a network with eight convolutions and residual connections, for images of 32 x 32 pixels as in CIFAR-10. To train on CIFAR-10
# itself, with the course's own model wrapper, run `mpiexec -n 2 python -m course_lib.training.resnet --data cifar10`.
#
# The next cell trains for half a minute to two minutes, depending on your machine. The bar shows its progress.

# %% Train tags=["experiment", "slide-50"]
# %%px
width, batch_size, epochs, lr = 8, 64, 4, 0.01  # batch_size: over all ranks
model = resnet.resnet9(width, seed=comm.Get_rank())
loader = partition_dataset(ArrayDataset(data.x_train, data.y_train), batch_size)  # 1
broadcast_parameters(model)  # 2
sgd = SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4)
optimizer = DistributedOptimizer(sgd)  # 3
losses, steps = [], epochs * len(loader)
bar = tqdm(total=steps, unit="step", ncols=80, disable=comm.Get_rank() > 0)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        bar.update()
    if comm.Get_rank() == 0:
        accuracy = resnet.accuracy(model, data.x_test, data.y_test)
        print(f"epoch {epoch + 1}: test accuracy {accuracy:.3f}")
bar.close()

# %% Draw the loss tags=["folded", "slide-50"]
plots.losses(
    {f"rank {r}": values for r, values in enumerate(ranks.pull("losses")[:2])}, "ResNet-9 on drawn shapes: loss on each rank's own batches"
)

# %% [markdown] tags=["slide-all"]
# ## And on GPUs?
#
# CuPy is NumPy for NVIDIA GPUs, NCCL is NVIDIA's library of collectives, and NVLink is the fast link between the GPUs of one machine.
# `init(backend="nccl")` gives you the same communicator for CuPy arrays: the collectives then run over NVLink or the network, from one
# GPU's memory to another's. `model.to(cupy)` moves a model there. If there is no GPU, `init` says so.

# %% Look for GPUs tags=["experiment"]
# %%px
try:
    gpus = init(backend="nccl")
    import cupy

    total = cupy.empty(3)
    gpus.Allreduce(cupy.ones(3), total)
    print(f"{gpus.Get_size()} GPUs, and an all-reduce gives {total}")
except RuntimeError as error:
    print(error)

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - Horovod: `hvd.DistributedOptimizer` (`horovod/torch/optimizer.py`). A hook on each parameter starts `allreduce_async_`, and `step` waits
#   for all of them (`synchronize`). A gradient that has not come is reduced all the same. `hvd.broadcast_parameters` is ours.
# - PyTorch: no such optimizer, DDP wraps the model. Its `ZeroRedundancyOptimizer` (`torch/distributed/optim`) shards the state: ZeRO-1.
# - Megatron-LM: `DistributedOptimizer` (`megatron/core/optimizer/distrib_optimizer.py`) shards the state, too.
# - DeepSpeed: `DeepSpeedEngine.allreduce_gradients` (`deepspeed/runtime/engine.py`) without ZeRO: after backward, as here, in buckets.
# - JAX: average with `jax.lax.pmean` between `jax.grad` and the update.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. Batch normalization takes means over a rank's own samples. Is a step on four ranks with 16 samples each still the same as a step on one
#    rank with 64?
# 2. `DistributedOptimizer` communicates after `backward`, `MyDP` during it. When does that matter? How could the optimizer do it, too?
#
# The last cell stops the ranks.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes and other numbers of ranks, and Adam as well as SGD.

# %% Test: partition_dataset tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = OptimizerCheck("partition_dataset", ranks, show=False)
kinds = [(0, 1, 2), (0, 2, 6), (1, 2, 6), (1, 2, 6)]  # is the last batch smaller? And the least and most samples in a batch, plus one
for size, (smaller, *limits) in zip((1, 2, 3, 4), check.random.permutation(kinds).tolist(), strict=True):
    share = int(check.random.integers(*limits))
    part = share * int(check.random.integers(50 // share + 1, 70 // share + 1)) + smaller
    check.partition(size * part + int(check.random.integers(size > 1, size)), size * share, size)  # some are always left over
check.partition(9, 16, 4)  # fewer than a batch
### END HIDDEN TESTS

# %% Test: broadcast_parameters tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = OptimizerCheck("broadcast_parameters", ranks, show=False)
for size in (1, 2, 3, 4):
    for root in range(size):
        check.broadcast(size, root)
### END HIDDEN TESTS

# %% Test: DistributedOptimizer tags=["test"] points=10
### BEGIN HIDDEN TESTS
check = OptimizerCheck("DistributedOptimizer", ranks, show=False)
for size in (4, 3, 2, 1):
    for kind in ("SGD", "Adam"):
        check.optimizer(size, kind)
check.optimizer(4, "SGD", np.float32)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
