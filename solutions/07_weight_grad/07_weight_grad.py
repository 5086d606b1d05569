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

from course_lib import cluster, plots
from course_lib.check import Check
from course_lib.mesh import Mesh, grids
from course_lib.traffic import wire_bytes

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


# %% A call on each rank tags=["given", "skip"]
def collect(grad_w, grad_b, mp_size):
    answer = collect_weight_grad(grad_w, grad_b, dp_group(mp_size))
    return answer, grad_w, grad_b


def compare(check, grads, mesh):
    """Call the function with each rank's (grad_w, grad_b), and expect the means over the columns of the grid."""
    answers = ranks.call(collect, [dict(grad_w=w, grad_b=b, mp_size=mesh.mp) for w, b in grads], show=check.show)
    for r, (answer, *given) in enumerate(answers):
        means = check.tuple(answer, 2, name="collect_weight_grad", rank=r)
        column = mesh.groups("dp")[mesh.coordinates(r)[1]]
        needed = 0.0
        for i, name in enumerate(("grad_w", "grad_b")):
            want = np.mean([grads[member][i] for member in column], axis=0, dtype=np.float64).astype(given[i].dtype)
            rtol = 1e-5 if want.dtype == np.float32 else 1e-12
            cause = "a divisor other than the size of the group, the wrong group, or a division that rounds down"
            known = {"the sum, not the mean": want * len(column), "this rank's own gradient": grads[r][i]}
            known["the mean over all ranks, not over the group"] = np.mean([each[i] for each in grads], axis=0)
            scale = max(np.abs(grads[member][i]).max() for member in column)
            changed = "an in-place operation, or swapped buffers"
            check.array(given[i], grads[r][i], name=f"{name}, after the call,", rank=r, cause=changed)
            check.array(
                means[i], want, name=f"the collected {name}", rank=r, cause=cause, rtol=rtol, scale=scale, contiguous=True, instead=known
            )
            needed += wire_bytes("Allreduce", mesh.dp, want.nbytes + 2 * mesh.dp * want.itemsize)  # some answers pad the array
        check.sent(ranks.traffic[r], needed, name="collect_weight_grad", rank=r, cause="one all-reduce of each gradient is enough")


# %% Check tags=["given"]
for mesh in (Mesh(dp=4, mp=1), Mesh(dp=2, mp=2)):
    check = Check(f"collect_weight_grad, mp_size={mesh.mp}, dp_size={mesh.dp}")
    compare(check, [(np.full((3, 2), r, np.float32), np.arange(2, dtype=np.float32) * r) for r in range(1, 5)], mesh)
    check.passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# Here your function is called with the gradients of the worked example as `grad_b`.

# %% Draw the mean tags=["folded"]
before = ranks.pull("own")
answers = ranks.call(collect, [dict(grad_w=np.zeros(1), grad_b=b, mp_size=1) for b in before])
plots.exchange(before, [answer[1] for answer, *_ in answers], "Your collect_weight_grad over four ranks")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# On Fashion-MNIST, the perceptron of part 10 has 784 inputs, 256 hidden units and 10 classes. Here is what a rank sends per step to average
# its part of the gradients. Unlike the traffic in parts 03 to 06, it does not depend on the batch.


# %% Count the bytes tags=["folded"]
def step(mp_size):
    for inputs, outputs in ((784, 256 // mp_size), (256 // mp_size, 10)):
        collect_weight_grad(np.ones((inputs, outputs), np.float32), np.ones(outputs, np.float32), dp_group(mp_size))


moved = []
for mesh in (Mesh(dp=4, mp=1), Mesh(dp=2, mp=2)):
    ranks.call(step, dict(mp_size=mesh.mp))
    moved.append(ranks.traffic[0])
plots.traffic(moved, "What rank 0 sends per step to average gradients", ["mp 1, dp 4", "mp 2, dp 2"])

# %% [markdown] tags=["slide-50"]
# And memory? The averaged gradients come on top of the rank's own.

# %% Draw the memory tags=["folded"]
(mean_w, _), own_w, _ = ranks.call(collect, dict(grad_w=np.ones((784, 256), np.float32), grad_b=np.ones(256, np.float32), mp_size=1))[0]
plots.bars({"own gradient": own_w.nbytes, "own and mean": own_w.nbytes + mean_w.nbytes}, "Gradient of fc1's weight on each rank", "bytes")

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
check = Check("collect_weight_grad", show=False)
for mesh in grids(4):
    for dtype in (np.float32, np.float64):
        rows, columns = check.sizes(2, 5, 12)
        check.case = f"mp_size {mesh.mp}, dp_size {mesh.dp}, a weight of shape {(rows, columns)} and {np.dtype(dtype)}"
        normal = check.random.standard_normal
        compare(check, [(normal((rows, columns)).astype(dtype), normal(columns).astype(dtype)) for _ in range(4)], mesh)
### END HIDDEN TESTS

# %% Test: any shape tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = Check("collect_weight_grad", show=False)
for shape_w, shape_b in (((40,), (5,)), ((3, 4, 5), (1, 4)), ((6, 1), (1,)), ((2, 3, 2, 4), (2, 1, 3))):
    both = check.random.permutation([np.float32, np.float64])
    for mesh, dtypes in ((Mesh(dp=4, mp=1), both), (Mesh(dp=2, mp=2), both[::-1])):
        check.case = f"dp_size {mesh.dp}, grad_w of shape {shape_w}, grad_b of shape {shape_b}, {[np.dtype(d).name for d in dtypes]}"
        normal = check.random.standard_normal
        pairs = list(zip((shape_w, shape_b), dtypes, strict=True))
        compare(check, [[normal(shape).astype(dtype) for shape, dtype in pairs] for _ in range(4)], mesh)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
