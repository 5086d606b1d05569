# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 07 The gradient of the weights
#
# **You will build** `collect_weight_grad`, the only exchange that data parallel training needs.
#
# *{points} points. About 20 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, placement, plots
from course_lib.check.model_parallel import on_ranks
from course_lib.check.model_parallel.weight_grad import WeightGradCheck
from course_lib.mesh import Mesh, grids

ranks = cluster.start(4)
mesh = Mesh(dp=2, mp=2)
plots.groups(mesh, "mp_size=2, dp_size=2")

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np

from course_lib.collectives import Communicator

comm = Communicator()
rank = comm.Get_rank()


def dp_group(mp_size):
    """This rank's data parallel group: a column of the grid."""
    me = comm.Get_rank()  # not `rank`, because another cell may have changed it
    return comm.Split(color=me % mp_size, key=me)


# %% [markdown] tags=["slide"]
# The ranks of a **dp group** (a column of the grid) hold the same part of the model, and each works on its own samples. Each rank computes
# the gradient of the mean loss over *its* samples. For a step with the whole batch, all of them need the gradient of the mean loss over
# *all* samples. Because each rank has the same number of samples, that is the mean of the ranks' gradients:
#
# $$ \nabla L = \frac{1}{n} \sum_{r=0}^{n-1} \nabla L_r $$
#
# In the words of part 03: on the axis dp, the weights are **replicated** and the samples **sharded**. Each rank has used the weights for
# work of its own, so their gradient is **partial**. This is one more line of part 05's table, with one addition: a mean instead of a sum.

# %% Draw the line of this part tags=["folded", "slide"]
line = placement.LAYER_OPERATORS["weights"]
plots.operators([line], "What data parallel training does to the weights", ranks=4)

# %% [markdown] tags=["slide"]
# ## A worked example
#
# Four samples, one on each rank. The loss of a sample $x$ is half the squared distance between $w$ and $x$, so its gradient is $w - x$.
# Each rank computes its own gradient and, for comparison, the gradient of the mean loss. Which exchange turns one into the other?

# %% One sample on each rank
# %%px
w = np.array([2.0, 0.0])
samples = np.array([[1.0, 1.0], [2.0, 3.0], [4.0, 0.0], [5.0, 4.0]])
own = w - samples[rank]
of_all = np.mean(w - samples, axis=0)

# %% Draw the gradients tags=["folded", "slide"]
plots.exchange(ranks.pull("own"), ranks.pull("of_all"), "Before: each rank's own gradient. After: the gradient of the mean loss")

# %% [markdown] tags=["slide-50"]
# ## Your turn
#
# The weights may have any shape, and float32 must stay float32: a float64 gradient doubles memory and traffic.


# %% Exercise: collect_weight_grad tags=["exercise", "slide-50"]
# %%px
def collect_weight_grad(grad_w, grad_b, dp_comm):
    """Average a layer's gradients over the data parallel group.

    Parameters
    ----------
    grad_w, grad_b : numpy.ndarray
        This rank's gradients of the weight and of the bias: float32 or float64, of any
        shape, but the same on all ranks of the group. C-contiguous; do not modify them.
    dp_comm : Communicator
        This rank's data parallel group.

    Returns
    -------
    collected_grad_w, collected_grad_b : numpy.ndarray
        Their means over the group, with the same shapes and dtypes, C-contiguous.
        The same on all ranks of the group.

    Notes
    -----
    A rank sends at most what one all-reduce of each gradient sends, and 64 bytes. It
    makes at most 8 calls of the communicator.
    """
    ### BEGIN SOLUTION
    means = []
    for grad in (grad_w, grad_b):
        mean = np.empty_like(grad)
        dp_comm.Allreduce(grad, mean)
        mean /= dp_comm.Get_size()
        means.append(mean)
    return tuple(means)
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?

# %% Check tags=["given"]
for mesh in (Mesh(dp=4, mp=1), Mesh(dp=2, mp=2)):
    check = WeightGradCheck(f"collect_weight_grad, mp_size={mesh.mp}, dp_size={mesh.dp}", ranks)
    check.small(mesh).turns().passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# Here your function is called with the gradients of the worked example as `grad_b`.

# %% Draw the mean tags=["folded"]
before = ranks.pull("own")
answers = ranks.call(on_ranks.average, [dict(grad_w=np.zeros(1), grad_b=b, mp_size=1) for b in before])
plots.exchange(before, [answer[1] for answer, *_ in answers], "Your collect_weight_grad over four ranks")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# On Fashion-MNIST, the perceptron of part 10 has 784 inputs, 256 hidden units and 10 classes. Here is what a rank sends per step to average
# its part of the gradients. Unlike the traffic in parts 03 to 06, it does not depend on the batch. Change the layers: which of the two
# grids gains more from a wider hidden layer?


# %% Count the bytes tags=["folded"]
inputs, hidden_units, classes = 784, 256, 10


def step(widths, mp_size):
    inputs, hidden_units, classes = widths
    part = hidden_units // mp_size
    for rows, columns in ((inputs, part), (part, classes)):
        grad_w, grad_b = np.ones((rows, columns), np.float32), np.ones(columns, np.float32)
        collect_weight_grad(grad_w, grad_b, dp_group(mp_size))


moved = []
for mesh in (Mesh(dp=4, mp=1), Mesh(dp=2, mp=2)):
    ranks.call(step, dict(widths=(inputs, hidden_units, classes), mp_size=mesh.mp))
    moved.append(ranks.traffic[0])
plots.traffic(moved, "What rank 0 sends per step to average gradients", ["mp 1, dp 4", "mp 2, dp 2"])

# %% [markdown] tags=["slide-50"]
# And memory? The averaged gradients come on top of the rank's own.

# %% Draw the memory tags=["folded"]
grads = dict(grad_w=np.ones((inputs, hidden_units), np.float32), grad_b=np.ones(hidden_units, np.float32))
(mean_w, _), own_w, _ = ranks.call(on_ranks.average, dict(mp_size=1, **grads))[0]
held = {"own gradient": own_w.nbytes, "own and mean": own_w.nbytes + mean_w.nbytes}
plots.bars(held, "Gradient of fc1's weight on each rank", "bytes")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - **PyTorch**: `DistributedDataParallel` averages in buckets. Its `allreduce_hook` divides by the group's size *before* it adds up
#   (`torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py`), so that 16 bit numbers do not overflow.
# - **Megatron-LM**: `DistributedDataParallel` (`megatron/core/distributed/distributed_data_parallel.py`) also scales by 1/dp before the
#   sum, or lets the collective take the mean (`average_in_collective`). With `calculate_per_token_loss` it only adds up: see question 1.
# - **JAX**: `jax.lax.pmean(grads, "dp")`, which is `psum` divided by the size of the axis.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. If the ranks have different numbers of samples, the mean of the means is wrong. What would you exchange instead?
# 2. The gradient of fc2 is ready before the gradient of fc1. What could a rank do in the meantime? (Part 14 does this.)
#
# The last cells save your function to `func_impl.py`, where part 10 finds it, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "collect_weight_grad")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other grids, shapes and dtypes, and also count the bytes you send.

# %% Test: the mean in every grid tags=["test"] points=7
### BEGIN HIDDEN TESTS
check = WeightGradCheck("collect_weight_grad", ranks, show=False).layers(grids(4))
### END HIDDEN TESTS

# %% Test: any shape tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = WeightGradCheck("collect_weight_grad", ranks, show=False).shapes()
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
