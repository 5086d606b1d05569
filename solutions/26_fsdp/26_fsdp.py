# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 26 Fully sharded data parallel
#
# **You will build** `FullyShardedDataParallel`: a wrapper with which any model trains on several ranks, and each rank keeps only its part
# of the parameters, the gradients and the optimizer's state.
#
# *{points} points. About 75 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots, saving
from course_lib.check.flat_shard import FlatShardCheck
from course_lib.check.fsdp import FsdpCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
from functools import partial
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from course_lib import memory
from course_lib.autograd import Adam, Linear, Module, Parameter, Sequential, Tensor, after_backward, checkpoint
from course_lib.collectives import Communicator
from course_lib.ddp import DistributedDataParallel
from course_lib.gpt.model import Sizes, layers, loss_of
from course_lib.gpt.units import units

everyone = Communicator()
rank = everyone.Get_rank()
sizes = Sizes(vocabulary=64, width=128, heads=4, depth=8, length=32)
tokens = np.random.default_rng(rank).integers(0, 64, (2, 32))  # each rank has other texts

# %% [markdown] tags=["slide"]
# In part 13, each rank has the whole model. In part 08, you sharded one layer: its weight is gathered when it is needed, and goes again. Here
# the same is done for any model, one **block** after the other. A block's parameters are sharded together, as one flat array.
#
# `units(module)` gives a model's blocks, each with the parameters that are its own. The **rest** are parameters of no block, or of several.

# %% Look at the blocks of a GPT tags=["slide"]
# %%px --targets 0
blocks, rest = units(Sequential(*layers(sizes)))
for block, own in blocks:
    print(f"{type(block).__name__}: {len(own)} parameters, {sum(p.data.size for p in own):,} numbers")
print(f"the rest: {len(rest)} parameters")

# %% [markdown] tags=["slide-50"]
# ## A worked example: one flat array
#
# A weight of 2 × 3 and a bias of 3 are 9 numbers. Four ranks do not divide them: with how many zeros behind them do they? Which numbers does
# rank 2 keep?

# %% Cut a flat array tags=["slide-50"]
# %%px
small = [np.arange(1.0, 7).reshape(2, 3), np.array([7.0, 8, 9])]
flat = np.concatenate([array.ravel() for array in small])
part = -(-flat.size // 4)  # rounded up
flat = np.pad(flat, (0, 4 * part - flat.size))
mine = flat[rank * part : (rank + 1) * part]

# %% Draw the parts tags=["given", "slide"]
plots.holdings(ranks.pull("flat")[0], ranks.pull("mine"), "A flat array of a weight and a bias, on four ranks", ("numbers", ""))

# %% [markdown] tags=["slide-50"]
# ## Your turn: a flat shard
#
# `Iallgather(mine, all)` begins to gather and returns a request; after `request.Wait()`, `all` is complete. `Reduce_scatter(all, mine)`
# adds up the ranks' arrays, and each rank gets its part of the sum.


# %% Exercise: FlatShard tags=["exercise", "slide-50"]
# %%px
class FlatShard:
    """Some parameters as one flat array, of which each rank keeps its part.

    Parameters
    ----------
    parameters : list of Parameter
        The same on all ranks, all of one dtype. In the flat array they stand one after
        the other, row by row; behind them zeros, so that n divides its length.
    comm : Communicator
        n ranks; rank r keeps the r-th of n equal parts.

    Attributes
    ----------
    shard : Parameter
        This rank's part, a copy.
    whole : numpy.ndarray or None
        The flat array, while it is here or on its way. None at first.
    """

    def __init__(self, parameters, comm):
        ### BEGIN SOLUTION
        n, r = comm.Get_size(), comm.Get_rank()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.cuts = np.cumsum([0, *(p.data.size for p in parameters)])
        self.shapes = [p.shape for p in parameters]
        self.part = -(-int(self.cuts[-1]) // n)
        flat = self.flatten([p.data for p in parameters], parameters[0].dtype)
        self.shard = Parameter(flat[r * self.part : (r + 1) * self.part].copy())
        self.free()

    def flatten(self, arrays, dtype):
        flat = np.zeros(self.comm.Get_size() * self.part, dtype)
        for array, (begin, end) in zip(arrays, pairwise(self.cuts)):
            if array is not None:
                flat[begin:end] = array.ravel()
        return flat
        ### END SOLUTION

    def start(self):
        """Begin to gather, and wait for nobody; nothing, if `whole` is not None."""
        ### BEGIN SOLUTION
        if self.whole is None:
            self.whole = np.empty(self.comm.Get_size() * self.part, self.shard.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)
        ### END SOLUTION

    def gather(self):
        """Wait until all is here. Each ``p.data`` is then its part of `whole`, in its shape."""
        ### BEGIN SOLUTION
        self.start()
        self.request.Wait()
        for p, shape, (begin, end) in zip(self.parameters, self.shapes, pairwise(self.cuts)):
            p.data = self.whole[begin:end].reshape(shape)
        ### END SOLUTION

    def free(self):
        """Keep no more than `shard`: `whole` is None, each ``p.data`` has size 0. (What is on its way has to come first.)"""
        ### BEGIN SOLUTION
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.shard.dtype)
        ### END SOLUTION

    def reduce(self):
        """Add the mean of the ranks' gradients to ``shard.grad``; each ``p.grad`` is None then.

        A ``p.grad`` that is None stands for zeros, and so does ``shard.grad``.
        """
        ### BEGIN SOLUTION
        mine = np.empty_like(self.shard.data)
        self.comm.Reduce_scatter(self.flatten([p.grad for p in self.parameters], mine.dtype), mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


# %% Check the flat shard tags=["given"]
FlatShardCheck("FlatShard", ranks).shards(4).shards(4, np.float32).passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: the wrapper
#
# A block is gathered, works, and is freed. Nothing of it is kept for backward but its input: `checkpoint(function, x, then)` calls
# `function(x)` now and once more in backward, and when all its gradients are there, `then()`.
#
# 1. Give each block a new `forward`: ``block.forward = partial(self.run, i, block.forward)``, with `run(i, forward, x)` as your own method.
# 2. While a block computes, the next one is on its way already: i + 1 in forward, i - 1 in backward. All other blocks are freed.
# 3. The rest is there from the beginning of forward to the end of backward. `out.register_hook(...)` calls a function when backward begins,
#    and `after_backward(function)` in there has a function called when it ends. Without gradients (`not out.requires_grad`), forward is the end.


# %% Exercise: FullyShardedDataParallel tags=["exercise", "slide-50"]
# %%px
class FullyShardedDataParallel(Module):
    """A module that trains on n ranks, each with its own samples, and keeps 1/n of all.

    Parameters
    ----------
    module : Module
        The same on all ranks. Its blocks are called in the order of ``units(module)``;
        perhaps not all of them.
    comm : Communicator
        The ranks.

    Attributes
    ----------
    shards : list of FlatShard
        Of the blocks in their order, and then of the rest, if there is any.
    sync : bool
        True at first. While it is False, backward sends no gradients; they add up in
        ``p.grad``, and the next backward with True reduces the sum.
    """

    def __init__(self, module, comm):
        ### BEGIN SOLUTION
        blocks, rest = units(module)
        self.module, self.comm, self.sync = module, comm, True
        for i, (block, _) in enumerate(blocks):
            block.forward = partial(self.run, i, block.forward)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def run(self, i, forward, x):
        turns = [i - 1, i + 1]  # who comes next: at the end of the list in forward, then in backward

        def work(x):
            self.blocks[i].gather()
            following = turns.pop()
            for j, block in enumerate(self.blocks):
                if j == following:
                    block.start()
                elif j != i:
                    block.free()
            return forward(x)

        def then():
            self.blocks[i].free()
            if self.sync:
                self.blocks[i].reduce()

        out = checkpoint(work, x, then)
        self.blocks[i].free()
        return out

    def end(self, backward):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            if backward and self.sync:
                shard.reduce()
        ### END SOLUTION

    def named_parameters(self, prefix=""):
        """The shards, with names: what an optimizer gets."""
        yield from ((f"{prefix}shards.{i}", s.shard) for i, s in enumerate(self.shards))

    def forward(self, x):
        """The module's output for this rank's samples, a Tensor."""
        ### BEGIN SOLUTION
        for shard in self.rest:
            shard.free()
            shard.gather()
        out = self.module(x)
        if out.requires_grad:
            out.register_hook(lambda _: after_backward(partial(self.end, True)))
        else:
            self.end(False)
        return out
        ### END SOLUTION

    def clip_gradients(self, most, norm=2):
        """Multiply the shards' gradients by ``most / length`` if their length is above `most`.

        The length, which is returned, is that of all ranks' gradients as one vector: the
        root of the sum of its squares, or with ``norm=np.inf`` its largest magnitude.
        """
        ### BEGIN SOLUTION
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        if norm == 2:
            found = np.array([sum(np.sum(g.astype(np.float64) ** 2) for g in grads)], np.float64)
            self.comm.Allreduce(MPI.IN_PLACE, found)
            found = np.sqrt(found)
        else:
            found = np.array([max((np.abs(g).max() for g in grads), default=0)], np.float64)
            self.comm.Allreduce(MPI.IN_PLACE, found, op=MPI.MAX)
        length = float(found[0])
        for g in grads:
            if length > most:
                g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


# %% Check the wrapper tags=["given"]
FsdpCheck("FullyShardedDataParallel", ranks).train(4).train(3, shared=True).accumulate(4).exchanges(4).held().passed()
FsdpCheck("clip_gradients", ranks).clipping(4).passed()

# %% [markdown] tags=["skip"]
# Hidden tests run when your notebook is graded. They draw other sizes, dtypes and groups, and look at the memory that each process has.

# %% Test: a flat shard tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = FlatShardCheck("FlatShard", ranks, show=False)
for size in (1, 2, 3, 4):
    check.shards(size).shards(size, np.float32)
### END HIDDEN TESTS

# %% Test: steps as of the whole model tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = FsdpCheck("steps", ranks, show=False)
for size in (4, 3, 2, 1):
    check.train(size, np.float32 if size == 3 else np.float64)
check = check.train(4, blocks=2).train(3, blocks=6)
### END HIDDEN TESTS

# %% Test: shared and unused parameters tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = FsdpCheck("shared and unused parameters", ranks, show=False)
for size in (4, 3, 2, 1):
    check.train(size, np.float32 if size == 2 else np.float64, shared=True)
check = check.train(4, shared=True, blocks=6)
### END HIDDEN TESTS

# %% Test: accumulated gradients tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = FsdpCheck("accumulated gradients", ranks, show=False)
for size in (4, 3, 2, 1):
    check.accumulate(size, shared=size % 2 == 0, count=2 + size % 2)
### END HIDDEN TESTS

# %% Test: the order of exchanges tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = FsdpCheck("the order of exchanges", ranks, show=False)
check = check.exchanges(4).exchanges(3, blocks=4, shared=True).exchanges(2, np.float32).exchanges(1)
### END HIDDEN TESTS

# %% Test: two blocks at most tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = FsdpCheck("memory", ranks, show=False)
check = check.held(4).held(2)
### END HIDDEN TESTS

# %% Test: clipping tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = FsdpCheck("clipping", ranks, show=False).clipping(4, 3, 2, 1)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
