# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 36 Optimizers and shards
#
# **You will build** an optimizer that needs whole matrices, on ranks that do not have them: `newton_schulz`, `owners`, `ShardedMuon.step`.
#
# *{points} points. About 60 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np
from course_lib import cluster, plots, saving
from course_lib.check.muon.iteration import IterationCheck
from course_lib.check.muon.owners import OwnersCheck, loads
from course_lib.check.muon.step import MuonCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
from functools import partial
import numpy as np
from mpi4py import MPI

from course_lib.autograd import Adam, Parameter
from course_lib.check.muon.owners import flop
from course_lib.collectives import Communicator
from course_lib.gpt.training import optimizer_runs
from course_lib.trace.recorder import operation
from course_lib.zero import ShardedAdam

everyone = Communicator()

# %% [markdown] tags=["slide"]
# ## A worked example: Adam does not care where you cut
#
# Adam treats each number on its own. So ZeRO ([part 09](09_zero3_adam.ipynb)) puts all parameters one after the other into
# a flat array, and cuts it into equal parts, even in the middle of a matrix. `ShardedAdam` does so: a reduce-scatter adds up the gradients
# of a rank's part, Adam updates it, and an all-gather collects the parts. How far will its parameters be from those of one Adam?

# %% Compare with one Adam tags=["slide"]
# %%px
one, cut = Parameter(np.ones((7, 5))), Parameter(np.ones((7, 5)))
whole, sharded = Adam([one], 0.1), ShardedAdam([cut], everyone, 0.1)
for grad in np.random.default_rng(1).standard_normal((3, 4, 7, 5)):  # of all four ranks
    one.grad, cut.grad = grad.mean(axis=0), grad[everyone.rank]
    whole.step()
    sharded.step()
print("largest difference:", np.abs(one.data - cut.data).max())

# %% [markdown] tags=["slide"]
# ## Muon needs whole matrices
#
# **Muon** (Jordan et al., 2024, "Muon: an optimizer for hidden layers in neural networks") looks at a weight as a matrix. Any matrix is
# $U S V^\mathsf{T}$, with rotations $U$ and $V$, and lengths on the diagonal of $S$, its singular values. In a gradient, a few of these are
# large, and most are tiny: a step would go in a few directions only. Muon adds momentum to the gradient, and
# replaces the sum by $U V^\mathsf{T}$, in which all directions are equally long. Embeddings, the output matrix and norms stay with Adam.
#
# Below, that is done to a matrix as a whole, and to four parts of it, put together again. Which singular values will the second one have?

# %% Compare singular values tags=["slide"]
gradient = np.random.default_rng(0).standard_normal((64, 32)) * 0.9 ** np.arange(32)
matrices = [gradient, *np.split(gradient, 4)]
factors = [np.linalg.svd(matrix, full_matrices=False) for matrix in matrices]
whole, *parts = [u @ vt for u, _, vt in factors]
made = {"gradient / 5": gradient / 5, "whole": whole, "in parts": np.concatenate(parts)}
values = {name: np.linalg.svd(matrix)[1] for name, matrix in made.items()}
plots.lines(values, "Singular values, before and after", "number", "size")

# %% [markdown] tags=["slide-50"]
# ## Your turn: without singular values
#
# Singular values are slow to compute. But $a X + b X X^\mathsf{T} X$ has the same $U$ and $V$ as $X$, and $a s + b s^3$ for each singular
# value $s$. Divide the matrix by its Frobenius norm (the root of the sum of all squares) plus $10^{-7}$: then no $s$ is above 1. Then, five
# times, with a further term for $s^5$:
#
# $$X \leftarrow a X + b A X + c A^2 X, \qquad A = X X^\mathsf{T}, \qquad (a, b, c) = (3.4445, -4.7750, 2.0315)$$
#
# This is a **Newton-Schulz** iteration. It takes all but tiny $s$ to somewhere between 0.7 and 1.2, which is good enough. Transpose a matrix
# with more rows than columns, and in the end transpose it back, so that $X X^\mathsf{T}$ is small.


# %% Exercise: newton_schulz tags=["exercise", "slide-50"]
# %%px
def newton_schulz(matrix, steps=5):
    """Make a matrix nearly orthogonal.

    Parameters
    ----------
    matrix : numpy.ndarray
        (rows, columns), float32 or float64; unchanged. Zeros give zeros, NaN gives NaN.
    steps : int

    Returns
    -------
    numpy.ndarray
        A new array of the same shape and dtype. For a matrix of 2,000 rows or columns
        and at most 4 of the other, it holds at most 4,194,304 bytes at a time.
    """
    ### BEGIN SOLUTION
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
    return np.ascontiguousarray(x.T) if tall else x
    ### END SOLUTION


# %% Check newton_schulz tags=["given"]
IterationCheck("newton_schulz", ranks).values(1, 5).values(5, dtype=np.float32).in_turn().memory().passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: who does which matrix?
#
# If each rank made all matrices orthogonal, four ranks would do the same work four times. So each matrix gets an **owner**. With sides
# $s \le l$, a step of the iteration takes $4 s^2 l + 2 s^3$ floating-point operations (FLOP); `flop(shape)` is that times five. All ranks
# wait for the one that has the most to do. Which matrices should get an owner first?


# %% Exercise: owners tags=["exercise", "slide-50"]
# %%px
def owners(shapes, n):
    """Share matrices among ranks, so that no rank has much more to do than the others.

    Parameters
    ----------
    shapes : list of (int, int)
        There may be fewer than ranks. Not changed.
    n : int

    Returns
    -------
    list of int
        Each matrix's owner: the same on all ranks, without communication. In the tests,
        the busiest rank has at most 10% more FLOP than in the best choice known. A call
        takes at most 4 seconds.
    """
    ### BEGIN SOLUTION
    loads, found = [0] * n, [0] * len(shapes)
    for i in sorted(range(len(shapes)), key=lambda i: -flop(shapes[i])):
        found[i] = loads.index(min(loads))
        loads[found[i]] += flop(shapes[i])
    return found
    ### END SOLUTION


# %% Check owners tags=["given"]
OwnersCheck("owners", ranks).balanced(2, 3, 4).few().passed()

# %% Draw the loads tags=["folded", "slide-50"]
shapes = [(128, 384), (128, 128), (128, 512), (512, 128)] * 3  # of part 28's blocks
choices = {"owners": ranks.call("owners", dict(shapes=shapes, n=4))[0], "in turn": [0, 1, 2, 3] * 3}
bars = {f"{name}, rank {r}": load / 1e6 for name, owner in choices.items() for r, load in enumerate(loads(shapes, owner, 4))}
plots.bars(bars, "What each rank has to do in a step", "MFLOP")

# %% [markdown] tags=["slide-50"]
# ## Your turn: a step on all ranks
#
# Gradients go to their owners, each owner makes its matrices orthogonal, and updates come back. For a whole matrix $W$, its mean gradient
# $G$ and its momentum $M$, at first 0, which only the owner keeps:
#
# $$M \leftarrow \mu M + G, \qquad W \leftarrow W - \mathrm{lr} \, \sqrt{\max(1, \mathrm{columns} / \mathrm{rows})} \;\mathrm{orthogonalize}(M)$$
#
# `mesh` is a grid: `mesh.comm` has all ranks, this rank is `mesh.rank` of `mesh.size`, and `mesh.along("dp")` and `mesh.along("tp")` are
# its groups. Rank $r$ is at $(\lfloor r / \mathrm{tp} \rfloor, r \bmod \mathrm{tp})$. **Data parallel** ranks have gradients of different
# data. **Tensor parallel** ranks have the same data, but each has only its rows or columns of a matrix (part 21): put these together.
#
# Parts of a reduce-scatter may differ in length: `Reduce_scatter(flat, mine, counts)` adds up over all ranks of a group. To add up
# yourself, and to send updates back: `Alltoallv([sent, counts], [received, counts])`, a part of a flat array to each rank, or nothing.


# %% Exercise: ShardedMuon tags=["exercise", "slide-50"]
# %%px
class ShardedMuon:
    """Muon for matrices, each orthogonalised by its owner, and Adam for all others.

    Parameters
    ----------
    matrices : list of (Parameter, int)
        Of one dtype. The number is the dimension along which the tensor parallel ranks
        share the matrix in equal parts: 0 for rows, 1 for columns.
    others : list of Parameter
    mesh : RankMesh
        With the axes dp and tp; either may have one rank only.
    orthogonalize : callable
        Returns a new array like its argument, a whole matrix.
    owner : list of int
        For each matrix, a rank of mesh.comm; by default as `owners` says.

    Methods
    -------
    step()
        Update the matrices, with their gradients `p.grad`, and others by self.adam. An
        owner calls orthogonalize once for each of its matrices, at the same time as the
        other owners. In a step, self.adam's included, a rank sends at most twice the
        bytes of its gradients of matrices and others, three times if mesh.tp > 1. The
        tests give owners that allow it. It calls no ranks outside mesh.comm. Between
        steps, it keeps `velocity`, of the matrices' dtype, and no other large arrays.
        The caller reuses those of the gradients.
    """

    def __init__(self, matrices, others, mesh, lr=0.02, momentum=0.95, adam_lr=3e-3,
                 orthogonalize=newton_schulz, owner=None):  # fmt: skip
        self.params, self.axes = zip(*matrices, strict=True)
        self.lr, self.momentum, self.orthogonalize = lr, momentum, orthogonalize
        rows = [p.shape[0] * (mesh.tp if axis == 0 else 1) for p, axis in matrices]
        columns = [p.shape[1] * (mesh.tp if axis == 1 else 1) for p, axis in matrices]
        self.shapes = list(zip(rows, columns, strict=True))  # of the whole matrices
        self.owner = owners(self.shapes, mesh.size) if owner is None else owner
        self.adam = ShardedAdam(others, mesh.along("dp"), adam_lr)
        self.mesh, self.velocity = mesh, {}  # of this rank's matrices, by their number

    def step(self):
        ### BEGIN SOLUTION
        mesh, params, counts = self.mesh, self.params, [0] * self.mesh.size
        order = sorted(range(len(params)), key=lambda i: self.owner[i])
        for i in order:
            counts[self.owner[i]] += params[i].data.size
        back = [counts[mesh.rank]] * mesh.size
        sent = np.concatenate([params[i].grad.ravel() for i in order])
        received = np.empty((mesh.dp, mesh.tp, back[0]), sent.dtype)
        mesh.comm.Alltoallv([sent, counts], [received, back])
        parts = received.sum(axis=0) / mesh.dp
        updates, at = np.empty_like(parts), 0
        for i in order:
            if self.owner[i] == mesh.rank:
                axis, (rows, columns) = self.axes[i], self.shapes[i]
                here = slice(at, at := at + params[i].data.size)
                split = parts[:, here].reshape(mesh.tp, *params[i].shape)
                whole = np.concatenate(split, axis)
                whole += self.momentum * self.velocity.get(i, 0)
                self.velocity[i] = whole
                update = self.orthogonalize(whole) * max(1, columns / rows) ** 0.5
                for t, part in enumerate(np.split(update, mesh.tp, axis)):
                    updates[t, here] = part.ravel()
        mesh.comm.Alltoallv([np.tile(updates, (mesh.dp, 1)), back], [sent, counts])
        cuts = np.cumsum([params[i].data.size for i in order[:-1]])
        for i, part in zip(order, np.split(sent, cuts), strict=True):
            params[i].data -= self.lr * part.reshape(params[i].shape)
        self.adam.step()
        ### END SOLUTION


# %% Check the step tags=["given"]
MuonCheck("ShardedMuon", ranks).bits(1).bits(4, 1, np.float32).bits(2).bits(2, 2).costs(4, 1, np.float32).costs(2, 2).memory().passed()

# %% [markdown] tags=["slide"]
# ## What it costs
#
# Part 28's model, with the source code of Python's standard library as its text, and three optimizers: Adam for everything; Muon without
# owners, where each rank makes all matrices orthogonal; and yours. Will the last two have the same losses? In the trace of a step, further
# down, look for the two exchanges, and for the rank that keeps the others waiting between them.

# %% Train in three ways tags=["experiment", "slide-50"]
# %%px
muon = partial(ShardedMuon, lr=0.02, orthogonalize=operation(newton_schulz))  # traced
train = partial(optimizer_runs.train, everyone, muon, steps=80, adam_lr=2e-3)
run = optimizer_runs.Run(everyone, "Muon, sharded", muon)  # for the trace below


# %% Draw the loss against steps tags=["folded", "slide"]
ways = ("Adam", "Muon, on each rank", "Muon, sharded")
runs = {way: ranks.call("train", dict(way=way)) for way in ways}
same = len({run["weights"].tobytes() for way in ways[1:] for run in runs[way]}) == 1
print("Muon: after the last step, all ranks have the same matrices in both runs:", same)
plots.losses({way: run[0]["losses"] for way, run in runs.items()}, "Training loss against steps")

# %% Draw the loss against seconds tags=["folded", "slide"]
for way, (run, *_) in runs.items():
    print(f"{way}: {run['optimizer']:.0f} ms in the optimizer, {run['sent'] / 1e6:.1f} MB sent in a step")
at = np.linspace(0.1, 1, 50) * min(run[0]["seconds"][-1] for run in runs.values())
over_time = {way: np.interp(at, run[0]["seconds"], run[0]["losses"]) for way, run in runs.items()}
plots.lines(over_time, "Training loss against seconds, until the fastest has ended", "seconds", "loss", at)

# %% Trace a step tags=["experiment", "slide-50"]
# %%px --trace # A step of Muon, sharded
run.backward(step=0)
run.step()

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `torch.optim.Muon` takes two-dimensional parameters only, and works on whole tensors. `adjust_lr_fn` chooses the factor of the
#   shape: `"original"`, with rows and columns swapped as PyTorch's weights are, or `"match_rms_adamw"` (Liu et al., 2025).
# - Megatron-LM: `LayerWiseDistributedOptimizer` gives whole matrices to ranks, the one with most elements first. `TensorParallelMuon` has a
#   `tp_mode`: by default every tensor parallel rank does the whole matrix; with `"blockwise"` each does its own part, on purpose.
# - JAX: `optax.contrib.muon`, Muon and Adam in one. For sharded matrices in PyTorch: `microsoft/dion`, with an all-to-all to owners and back.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. Costs 3, 3, 2, 2, 2 on two ranks: what does largest first give, and what is best? When would that matter?
# 2. One matrix takes longer than all others together. What could the other ranks do meanwhile?
# 3. With FSDP (part 26), each rank has a part of each gradient after backward, already added up. What must a step send then?

# %% Save the functions tags=["given", "skip"]
saving.save(ranks, "newton_schulz", "owners", "ShardedMuon")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other shapes, owners, grids and groups, and an orthogonalisation of their own.

# %% Test: the iteration tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = IterationCheck("newton_schulz", ranks, show=False).in_turn().values(1, 7).values(3, dtype=np.float32)
### END HIDDEN TESTS

# %% Test: the memory of the iteration tags=["test"] points=1
### BEGIN HIDDEN TESTS
check = IterationCheck("newton_schulz", ranks, show=False).memory()
### END HIDDEN TESTS

# %% Test: who owns what tags=["test"] points=4
### BEGIN HIDDEN TESTS
from grading.authoring.cases.muon import draw_case

check = OwnersCheck("owners", ranks, draw_case, show=False).few().balanced(3, 4, 4, 7, 17)
### END HIDDEN TESTS

# %% Test: data parallel ranks tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = MuonCheck("ShardedMuon", ranks, show=False).bits(4).bits(3, 1, np.float32).bits(2, twice=True)
### END HIDDEN TESTS

# %% Test: matrices that ranks share tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = MuonCheck("ShardedMuon", ranks, show=False).bits(2, 2).bits(1, 4, np.float32).bits(1, 2).bits(2, 2, np.float32)
### END HIDDEN TESTS

# %% Test: bytes, and all owners at once tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = MuonCheck("ShardedMuon, costs", ranks, show=False).costs(4, dtype=np.float32).costs(2, 2).costs(3).costs(1, 4)
### END HIDDEN TESTS

# %% Test: memory between steps tags=["test"] points=1
### BEGIN HIDDEN TESTS
check = MuonCheck("ShardedMuon, memory", ranks, show=False).memory().memory(2, 2)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
