# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 13 Data parallelism in three lines
#
# **You will build** `rank_batches` and `check_parameter_closeness`, and train with the ready-made `DistributedDataParallel`.
#
# *{points} points. About 35 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check.data.replicas.check import ReplicasCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np

from course_lib import datasets
from course_lib.autograd import SGD, ArrayDataset, DataLoader, Linear, Sequential, Tanh, cross_entropy
from course_lib.collectives import Communicator
from course_lib.ddp import DistributedDataParallel, pytorch
from course_lib.trace import span

comm = Communicator()
rank, size, data = comm.Get_rank(), comm.Get_size(), datasets.load("digits")


def network(seed):
    """64 inputs, two hidden layers of 32, 10 classes."""
    random = np.random.default_rng(seed)
    first, second, third = (Linear(a, b, bias=False, random=random) for a, b in ((64, 32), (32, 32), (32, 10)))
    return Sequential(first, Tanh(), second, Tanh(), third)


# %% [markdown] tags=["slide"]
# In data parallel training, each rank has the whole model and its own samples. Two things keep the models equal: they start equal, and in
# each step all ranks use the *mean* of their gradients. `DistributedDataParallel`, a wrapper around the model, takes care of both.
#
# ## A worked example
# Each rank has one sample and a model with four inputs and two classes. The picture shows the gradients of the four weights of the second
# class, first without the wrapper and then with it. What do you expect?

# %% One sample a rank
# %%px
x, y = np.zeros((1, 4)), np.zeros(1, int)
x[0, rank] = 8.0 * (rank + 1)
alone, shared = (Linear(4, 2, bias=False, dtype=np.float64) for _ in range(2))
alone.weight.data[:] = shared.weight.data[:] = 0
cross_entropy(alone(x), y).backward()

model = DistributedDataParallel(shared)  # 1: wrap it
loss = cross_entropy(model(x), y)  # 2: each rank with its own samples
loss.backward()  # 3: as usual; afterwards each gradient is the mean over the ranks
before, after = alone.weight.grad[:, 1], shared.weight.grad[:, 1]

# %% Draw the gradients tags=["folded", "slide"]
plots.exchange(ranks.pull("before"), ranks.pull("after"), "The gradients of the second class's four weights, without and with the wrapper")

# %% [markdown] tags=["slide-50"]
# ## Your turn: whose batch is it?
#
# All ranks have the same data set, and go through it in the same order. So they can divide the batches without communicating: each of n
# ranks takes every n-th batch. Two things need care:
#
# - *The last batches.* All ranks must take the same number; a rank with one more would wait for gradients that never come. Batches left
#   over are dropped. The very last batch may be smaller than the others. Whoever gets it, its samples count more in the mean.
# - *The epoch's order.* A loader that shuffles draws a new order in each pass (an *epoch*), from its seed. The orders are the same on all
#   ranks only if all make the loader with the same seed, and all have gone through it equally often. So an epoch is one pass, no more.


# %% Exercise: rank_batches tags=["exercise"]
# %%px
def rank_batches(loader, rank, size):
    """Return the batches that one rank trains on.

    Parameters
    ----------
    loader : DataLoader
        Yields ``len(loader)`` batches; the last one may be smaller. If it shuffles,
        each pass has a new order, which is the same on all ranks: same seed, same
        number of passes before. Go through it once.
    rank, size : int
        The rank, and the number of ranks.

    Returns
    -------
    iterable of (numpy.ndarray, numpy.ndarray)
        The batches numbered rank, rank + size, rank + 2 size, ...:
        ``len(loader) // size`` in all. Nobody takes the batches left over at the end;
        a smaller last batch that is not left over is used like any other.
    """
    ### BEGIN SOLUTION
    last = len(loader) // size * size
    return [batch for i, batch in enumerate(loader) if i < last and i % size == rank]
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: are the models still equal?
#
# Rank 0 collects each parameter from all ranks with `comm.Gather` and compares it with its own; `np.allclose` allows for rounding.


# %% Exercise: check_parameter_closeness tags=["exercise", "slide-50"]
# %%px
def check_parameter_closeness(model):
    """Check whether all ranks have the same parameters; all ranks must call it.

    Parameters
    ----------
    model : Module
        ``parameters()`` lists them in the same order on all ranks; ``p.data`` has the
        values of a parameter p.

    Returns
    -------
    close : bool
        On rank 0: whether all ranks' parameters are close to rank 0's, by `np.allclose`
        with its default tolerances. It does not matter what the other ranks return.
    """
    ### BEGIN SOLUTION
    close = True
    for p in model.parameters():
        everyone = np.empty((size, *p.shape), p.dtype) if rank == 0 else None
        comm.Gather(p.data, everyone, root=0)
        if rank == 0:
            close = close and bool(np.allclose(everyone, p.data))
    return close
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?


# %% Check: rank_batches tags=["given"]
check = ReplicasCheck("rank_batches", ranks)
check.batches(samples=24, batch=2, size=4, shuffle=False)
check.batches(samples=30, batch=2, size=4, shuffle=True)
check.passed()

# %% Check: check_parameter_closeness tags=["given"]
check = ReplicasCheck("check_parameter_closeness", ranks)
check.closeness(check.parameters(), True, "equal parameters")
values = check.parameters(np.float32)
values[2][0][0, 0] += 0.5
check.closeness(values, False, "one value on rank 2 that differs by 0.5, float32")
check.passed()

# %% [markdown] tags=["slide-50"]
# ## Train
# Each rank trains on its own batches, once with the wrapper and once without. Without it, the four models drift apart.


# %% Train with and without tags=["experiment", "slide-50"]
# %%px
batch, epochs, lr = 8, 2, 0.2  # samples per rank and step; try other values


def train(model):
    """Return how far the first layer's weights are from rank 0's after each step."""
    dataset = ArrayDataset(data.x_train, data.y_train)
    loader = DataLoader(dataset, batch, shuffle=True, seed=0)
    optimizer, apart = SGD(model.parameters(), lr), []
    for _ in range(epochs):
        for x, y in rank_batches(loader, rank, size):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            everyone = np.empty((size, 64, 32), np.float32)
            comm.Allgather(model.parameters()[0].data, everyone)
            apart.append(float(np.abs(everyone - everyone[0]).max()))
    right = np.mean(model(data.x_test).data.argmax(axis=1) == data.y_test)
    same = check_parameter_closeness(model)
    if rank == 0:
        print(f"accuracy of rank 0's model: {right:.3f}", end="; ")
        print(f"the ranks have the same model: {same}")
    return apart


with_wrapper = train(DistributedDataParallel(network(seed=0)))
without = train(network(seed=0))

# %% Draw how far apart they are tags=["folded", "slide-50"]
curves = {"with the wrapper": ranks.pull("with_wrapper")[0], "without": ranks.pull("without")[0]}
plots.lines(curves, "How far apart the ranks' models are", "step", "largest difference in a weight")

# %% [markdown] tags=["slide-50"]
# ## Where does the time go?
# `--trace` records what each rank does while a cell runs, and draws it below. Here, rank 3 gets more samples than the others. How long do
# they compute, and how long do they wait, for whom and where?

# %% Trace three steps tags=["experiment", "slide-50"]
# %%px --trace # Three steps, one rank with more samples
slow, times_as_many = 3, 4  # try another rank, and another number
model = DistributedDataParallel(network(seed=0))
copies = times_as_many if rank == slow else 1
x, y = np.tile(data.x_train, (2 * copies, 1)), np.tile(data.y_train, 2 * copies)
comm.Barrier()
for _ in range(3):
    with span("forward"):
        loss = cross_entropy(model(x), y)
    with span("backward"):
        loss.backward()

# %% [markdown] tags=["slide-all"]
# ## The same in PyTorch
# PyTorch's wrapper has the same name, and you use it in the same three lines. Here both train the same model for 20 steps on the same
# ranks. By how much do the weights differ at the end?

# %% Beside PyTorch tags=["experiment"]
# %%px
loader = DataLoader(ArrayDataset(data.x_train, data.y_train), 8)
batches = list(rank_batches(loader, rank, size))[:20]
model = DistributedDataParallel(network(seed=rank))
optimizer = SGD(model.parameters(), 0.2)
start = [p.data.copy() for p in model.parameters()]
for x, y in batches:
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
if pytorch.available():
    theirs = pytorch.train(start, batches, 0.2, comm)
    pairs = zip(model.parameters(), theirs, strict=True)
    apart = max(float(np.abs(p.data - w).max()) for p, w in pairs)
    steps = len(batches)
    print(f"after {steps} steps, the largest difference in a weight is {apart:.1e}")
else:
    print(pytorch.INSTALL_HINT)

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `torch.nn.parallel.DistributedDataParallel` (`torch/nn/parallel/distributed.py`) also broadcasts buffers, such as the running
#   means of batch normalization. `DistributedSampler` (`torch/utils/data/distributed.py`) divides samples, not batches. By default it
#   repeats some so that all ranks get as many; ours drops some. Without `set_epoch(epoch)` it shuffles every epoch in the same way.
# - JAX: no wrapper. Inside `jax.shard_map` you write `jax.lax.pmean(gradients, "data")`.
# - Megatron-LM: `megatron/core/distributed/distributed_data_parallel.py`; `check_param_hashes_across_dp_replicas`
#   (`megatron/core/utils.py`) gathers hashes of the parameters, not the parameters.
# - DeepSpeed: `DeepSpeedEngine` (`deepspeed/runtime/engine.py`), with PyTorch's sampler: `_broadcast_model`, `allreduce_gradients`.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
# 1. With four ranks and batches of 8, which batch size would one process need for the same steps? What does that mean for the learning
#    rate?
# 2. The wrapper averages the gradients. When would averaging the weights after each step do the same? (Think of momentum, or Adam.)
#
# The last cell stops the ranks.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other numbers and put the differences in other places.

# %% Test: rank_batches tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = ReplicasCheck("rank_batches", ranks, show=False)
for size in (1, 2, 3, 4, 7):
    for shuffle in (False, True):
        batch, samples = int(check.random.integers(1, 5)), int(check.random.integers(40, 60))
        check.batches(samples, batch, size, shuffle)
check.batches(5, 2, 4, False)  # three batches: nobody gets one
check.batches(7, 2, 4, True)  # four: rank 3 gets the last one, which is smaller than the others
check.batches(25, 3, 3, True, drop_last=True)  # eight, without the smaller one
### END HIDDEN TESTS

# %% Test: check_parameter_closeness tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = ReplicasCheck("check_parameter_closeness", ranks, show=False)
cases = check.tolerances()
for dtype, scale in ((np.float64, 1.0), (np.float32, 1.0), (np.float64, 1e-3)):
    cases += check.differences(dtype, scale)
for k in check.random.permutation(len(cases)):  # in random order
    check.closeness(*cases[k])
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
