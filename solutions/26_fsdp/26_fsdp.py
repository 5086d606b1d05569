# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 26 Fully sharded data parallel
#
# **You will build** `FullyShardedDataParallel`: wrap it around any model, and the model trains on ranks that keep only their parts.
#
# *{points} points. About 75 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np
from course_lib import cluster, plots, saving
from course_lib.check.fsdp.flat_shard import FlatShardCheck
from course_lib.check.fsdp.check import FsdpCheck
from course_lib.plots import moving

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
from functools import partial
import numpy as np
from course_lib.autograd import Linear, Parameter, Sequential
from course_lib.collectives import Communicator
from course_lib.ddp import DistributedDataParallel
from course_lib.gpt import pytorch
from course_lib.gpt.fsdp import FlatBuffer, Hooked, PrintHooks, hook, profile, units
from course_lib.gpt.model import Sizes, layers
from course_lib.gpt.model.decoder import loss_of

everyone = Communicator()

# %% [markdown] tags=["slide"]
# In part 13, each rank has the whole model. In part 08, you sharded one layer: its weight is gathered when it is needed, and freed again
# afterwards. Here we do the same for any model, one **block** after another. A block's parameters are sharded together, as one flat array.
# The blocks are the modules directly inside the model. `blocks, rest = units(module)` finds them: `blocks` is a list of pairs
# `(block, parameters)`, and `rest` is a list of the parameters that belong to no block, or to several.

# %% [markdown] tags=["slide-50"]
# ## A worked example: one flat array
#
# `FlatBuffer(arrays, n)` knows how arrays are laid out in one flat array: one after another, row by row, padded with zeros until n divides the
# length. A weight of 2 × 3 and a bias of 3 are 9 numbers. How many zeros do they need for four ranks? Which numbers does rank 2 keep?

# %% Cut a flat array tags=["slide-50"]
# %%px
small = [np.arange(1.0, 7).reshape(2, 3), np.array([7.0, 8, 9])]
flat = FlatBuffer(small, 4)
whole = flat.join(small)  # flat.cut(whole) gives both back, as views of it
mine = np.split(whole, 4)[everyone.Get_rank()]

# %% Draw the parts tags=["folded", "slide"]
plots.holdings(ranks.pull("whole")[0], ranks.pull("mine"), "A flat array of a weight and a bias, on four ranks", ("numbers", ""))

# %% [markdown] tags=["slide-50"]
# ## Your turn: a flat shard
#
# `request = comm.Iallgather(mine, whole)` starts a gather; after `request.Wait()`, `whole` is complete. `comm.Reduce_scatter(whole, mine)`
# adds up the ranks' arrays and gives each rank its part of the sum.


# %% Exercise: FlatShard tags=["exercise", "slide-50"]
# %%px
class FlatShard:
    """Some parameters as one flat array, of which each rank keeps its own part.

    Parameters
    ----------
    parameters : list of Parameter
        The same on all ranks, all of the same dtype. Their own arrays are freed.
    comm : Communicator
        n ranks; rank r keeps the r-th of n equal parts of the flat array. Besides
        `shard` and `whole`, it keeps at most 12.5% of the flat array's bytes.

    Attributes
    ----------
    shard : Parameter
        This rank's part: a copy.
    whole : numpy.ndarray or None
        The flat array, while it is here or being gathered. None at first.

    Methods
    -------
    start()
        Unless `whole` is there, start one all-gather of `shard`; return immediately.
    gather()
        Wait until `whole` is complete: each ``p.data`` is p's part of it, in p's shape.
    free()
        Keep only `shard`: `whole` is None, each ``p.data`` an array of size 0. If a
        gather is in flight, wait for it first.
    reduce()
        Add the mean of the ranks' gradients to ``shard.grad`` (a new array, if it is
        None), and set each ``p.grad`` to None; their arrays stay as they are. One that
        is None counts as zeros. It is one reduce-scatter of the flat array. Nothing but
        these two calls `comm`.
    """

    def __init__(self, parameters, comm):
        ### BEGIN SOLUTION
        arrays, n, self.whole = [p.data for p in parameters], comm.Get_size(), None
        self.parameters, self.comm, self.flat = parameters, comm, FlatBuffer(arrays, n)
        parts = np.split(self.flat.join(arrays), n)
        self.shard = Parameter(parts[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


# %% Check the flat shard tags=["given"]
FlatShardCheck("FlatShard", ranks).shards(4, 2).shards(4, dtype=np.float32).passed()

# %% [markdown] tags=["slide-50"]
# ## A worked example: which block runs when
#
# `hook(module, hooks)` makes a module call four methods of `hooks`, shown below. A block needs its weights only between `before` and `after`:
# once in forward, and once more in backward. In which order do you expect the calls? (Without gradients, a forward ends with `end(False)`.)

# %% Print the calls tags=["slide-50"]
# %%px --targets 0
net = Sequential(Linear(2, 2), Linear(2, 2), Linear(2, 1))
hook(net, PrintHooks())
net(np.ones((1, 2), np.float32)).sum().backward()

# %% [markdown] tags=["slide-50"]
# ## Your turn: the wrapper
#
# `Hooked` calls your four hooks. Decide what each must do, so that at any time:
#
# - the block that runs is whole, the one that runs next is already on its way, and no other block is either;
# - the rest is whole during the step, and nothing is whole between steps, when an optimizer may change the shards;
# - a block's gradients are reduced as soon as they are complete, if `sync` says so, and the rest's at the end.
#
# In `clip_gradients`, a rank knows only the norm of its own parts; collect all norms with `Allgather`. Then, move through a step.


# %% Exercise: FullyShardedDataParallel tags=["exercise", "slide-50"]
# %%px
class FullyShardedDataParallel(Hooked):
    """A module that trains on n ranks, each with its own samples and 1/n of the model.

    Parameters
    ----------
    module : Module
        The same on all ranks. A step may skip some of its blocks.
    comm : Communicator
        Forward and backward gather each shard at most once each; backward reduces each
        at most once, if `sync` is True. Besides shards and their gradients, a rank
        holds at most 4.8 blocks in a step, 2.6 without gradients, 0.75 between steps.

    Attributes
    ----------
    shards : list of FlatShard
        One for each block, in order, and then one for the rest, if there is any.
    sync : bool
        True at first. While it is False, backward sends no gradients: they add up in
        ``p.grad``. Once it is True, a block's next backward reduces the sums.
    """

    def __init__(self, module, comm):
        super().__init__(module)  # sets up the hooks; parameters() lists the shards
        ### BEGIN SOLUTION
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest
        ### END SOLUTION

    def begin(self):
        """The module's forward begins; an earlier one may have had no backward."""
        ### BEGIN SOLUTION
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()
        ### END SOLUTION

    def before(self, i, back):
        """Block i is about to run: in the backward pass, if `back`; else in forward."""
        ### BEGIN SOLUTION
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()
        ### END SOLUTION

    def after(self, i, back):
        """Block i has run; in the backward pass, its gradients are complete."""
        ### BEGIN SOLUTION
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()
        ### END SOLUTION

    def end(self, back):
        """The step is over: after the backward pass, if `back`; else after forward."""
        ### BEGIN SOLUTION
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()
        ### END SOLUTION

    def clip_gradients(self, most, norm=2):
        """Return the norm of all ranks' gradients, taken as one vector: the root of the
        sum of squares, or the largest magnitude if ``norm=np.inf``. If the norm is
        above `most`, multiply the shards' gradients by `most` divided by the norm.
        Send at most 64 bytes for each shard, in at most 2 calls for each."""
        ### BEGIN SOLUTION
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        total = float(np.linalg.norm(every, norm))
        for g in grads if total > most else []:
            g *= g.dtype.type(most / total)
        return total
        ### END SOLUTION


# %% Check the wrapper tags=["given"]
check = FsdpCheck("FullyShardedDataParallel", ranks).train(4).train(4, shared=True)
check.accumulate(4).exchanges(4).peak_memory().passed()
FsdpCheck("clip_gradients", ranks).clipping(4).passed()

# %% Watch a step, block by block tags=["folded", "slide-50"]
with ranks.trace(show=False) as traces:
    ranks.run("held = profile.held_in_step(FullyShardedDataParallel, everyone)")
moving.fully_sharded(traces, ranks.pull("held"), "A step with your wrapper, block by block")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# In the first picture, numbers are the blocks that run, and thin bars gathers in flight: are they hidden? The second shows what a rank keeps
# between steps. With part 13's wrapper, that is four arrays of the model's size: parameters, gradients, and Adam's two moments.

# %% Train in both ways tags=["folded", "skip"]
# %%px
sizes = Sizes(vocabulary=64, width=128, heads=4, depth=8, length=32)
tokens = np.random.default_rng(everyone.Get_rank()).integers(0, 64, (2, sizes.length))  # different texts on each rank
plain = profile.train(partial(DistributedDataParallel, shared=False), partial(layers, sizes), everyone, tokens)
sharded = profile.train(FullyShardedDataParallel, partial(layers, sizes), everyone, tokens)
model = profile.name_blocks(FullyShardedDataParallel(Sequential(*layers(sizes)), everyone))

# %% A step with your wrapper, block by block tags=["folded", "slide"]
# %%px --trace
everyone.Barrier()
loss_of(model(tokens), np.roll(tokens, -1, axis=1)).backward()

# %% Draw the memory tags=["folded", "slide-50"]
plots.bars({"data parallel": ranks.pull("plain")[0]["kept"], "fully sharded": ranks.pull("sharded")[0]["kept"]}, "Kept between steps")

# %% [markdown] tags=["slide-all"]
# ## The same in PyTorch
#
# `fully_shard` does to PyTorch's modules what your wrapper does to ours. Here it trains the same model, on the same ranks and texts.

# %% Beside PyTorch tags=["experiment"]
# %%px
if pytorch.available():
    theirs = pytorch.train_fully_sharded(partial(layers, sizes), everyone, tokens)
    apart = np.abs(np.subtract(theirs["losses"], sharded["losses"])).max()
    print(f"all losses: the largest difference is {apart:.1e}")
    print(f"this rank keeps {theirs['kept']:,} bytes there, {sharded['kept']:,} here")
else:
    print(pytorch.INSTALL_HINT)

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch's FSDP2 is `fully_shard` (`torch/distributed/fsdp/_fully_shard`), called on each block and then on the model. It cuts each
#   parameter along its first dimension, and still gathers a block in one exchange; FSDP1 (`FullyShardedDataParallel`) has flat arrays, as
#   you do. `set_requires_gradient_sync(False)` is `sync = False`. `reshard_after_forward=False` keeps blocks whole until backward.
# - DeepSpeed: stage 3; `runtime/zero/partitioned_param_coordinator.py` records the order of a first step, and prefetches by it.
# - Megatron-LM: `--use-megatron-fsdp`. JAX: parameters sharded over the data axis, and `jit`, which adds the collectives.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. With `sync = False`, a rank keeps the full gradients of all blocks. When is that worth the memory?
# 2. How many more bytes does a step send than with plain data parallelism? And why flat arrays, instead of each parameter on its own?

# %% Save the classes tags=["given", "skip"]
saving.save(ranks, "FlatShard", "FullyShardedDataParallel")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, dtypes and groups, and look at the memory of each process.

# %% Test: a flat shard tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = FlatShardCheck("FlatShard", ranks, show=False).shards(1, 2, 3, 4).shards(3, 4, dtype=np.float32).peak_memory(4)
### END HIDDEN TESTS

# %% Test: steps of training tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = FsdpCheck("steps", ranks, show=False).train(4).train(3, np.float32).train(2).train(1, blocks=2).train(4, blocks=6)
### END HIDDEN TESTS

# %% Test: the order of exchanges, and memory tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = FsdpCheck("the order", ranks, show=False).exchanges(4).exchanges(2, np.float32).exchanges(1).peak_memory()
### END HIDDEN TESTS

# %% Test: accumulated gradients, and clipping tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = FsdpCheck("accumulated", ranks, show=False).accumulate(4, shared=False).accumulate(3, shared=False).clipping(4, 3, 1)
### END HIDDEN TESTS

# %% Test: shared and unused parameters tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = FsdpCheck("shared parameters", ranks, show=False).train(4, shared=True).train(3, np.float32, shared=True).train(2, shared=True)
check = check.train(1, shared=True).accumulate(4).accumulate(2, count=2).exchanges(3, blocks=4, shared=True).peak_memory(shared=True)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
