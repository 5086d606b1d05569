# ---
# jupyter:
#   course:
#     ranks: 8
# ---

# %% [markdown] tags=["slide"]
# # 01 Splitting the data
#
# **You will build** `split_data`, which gives each rank its part of the training data.
#
# *{points} points. About 20 minutes.*

# %% [markdown] tags=["slide"]
# ## The grid of ranks
#
# Eight ranks can share the work in two ways at once. The ranks of a **model parallel** group (mp) hold one model together: each of them
# holds a part of it. The ranks of a **data parallel** group (dp) hold the same part of the model and train it on different data.
#
# We number the ranks in *model-parallel-major* order: with `mp_size=2` and `dp_size=4`, ranks 0 and 1 hold the first copy of the model,
# ranks 2 and 3 the second, and so on.

# %% Start the ranks tags=["given", "slide"]
import numpy as np

from course_lib import cluster, datasets, plots
from course_lib.check import Check
from course_lib.mesh import Mesh, grids

ranks = cluster.start(8)
mesh = Mesh(dp=4, mp=2)
plots.groups(mesh, "mp_size=2, dp_size=4: each row is one copy of the model")

# %% [markdown] tags=["slide"]
# So the ranks of a row must see **the same** samples, because they run one model together. Different rows must see **different** samples,
# and together the rows must cover all of them.

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np

from course_lib.collectives import Communicator

rank = Communicator().Get_rank()

# %% [markdown] tags=["slide"]
# ## A worked example
#
# Without model parallelism (`mp_size=1`), each rank has its own copy of the model. With twelve samples on four ranks, rank $r$ takes three
# samples, starting at sample $3r$. Run the cell, then set `sharing` to 2, 3 or 6 and run it again.

# %% Share among four ranks
# %%px
samples, sharing = np.arange(12), 4
each = len(samples) // sharing
if rank < sharing:
    print(samples[rank * each : (rank + 1) * each])

# %% [markdown] tags=["slide-50"]
# ## Your turn
#
# Which copy of the model does a rank belong to, and which samples does that copy get? Keep the samples in their original order. You may
# return views or copies.


# %% Exercise: split_data tags=["exercise", "slide-50"]
# %%px
def split_data(x_train, y_train, mp_size, dp_size, rank):
    """Give a rank its part of the training data.

    Parameters
    ----------
    x_train : numpy.ndarray
        Shape ``(n, ...)``: n samples; dp_size divides n.
    y_train : numpy.ndarray
        Shape ``(n, ...)``: their labels.
    mp_size, dp_size : int
        Number of ranks in a model parallel and in a data parallel group.
    rank : int
        The rank in the grid, from 0 to mp_size * dp_size - 1.

    Returns
    -------
    split_x_train, split_y_train : numpy.ndarray
        Shape ``(n // dp_size, ...)``: this rank's samples and labels,
        in their original order.
    """
    ### BEGIN SOLUTION
    each = len(x_train) // dp_size
    start = rank // mp_size * each
    return x_train[start : start + each], y_train[start : start + each]
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# This check sends twelve numbered samples to all ranks, calls your function there, and compares the results.

# %% Check tags=["given"]
check = Check("split_data with mp_size=2, dp_size=4")
x, y = np.arange(24.0).reshape(12, 2), np.arange(12)
answers = ranks.call("split_data", [dict(x_train=x, y_train=y, mp_size=2, dp_size=4, rank=r) for r in range(8)], show=True)
for r, answer in enumerate(answers):
    split_x, split_y = check.tuple(answer, 2, name="split_data", rank=r)
    mine = slice(3 * (r // 2), 3 * (r // 2) + 3)
    cause = "rank or rank % mp_size used as the number of the rank's copy of the model"
    for name, got, whole in (("split_x_train", split_x, x), ("split_y_train", split_y, y)):
        known = {f"the block of copy {copy}, samples {3 * copy} to {3 * copy + 2}": whole[3 * copy :][:3] for copy in range(4)}
        known |= {f"every 4th sample, starting at {start}, instead of a block": whole[start::4] for start in range(4)}
        check.array(got, whole[mine], name=name, rank=r, cause=cause, instead=known)
check.passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# These are the samples that your ranks really hold. Ranks in the same row of the grid hold the same samples, and together the rows hold all
# of them.

# %% Draw who holds what tags=["folded"]
x = np.arange(1440 * 4).reshape(1440, 4)
answers = ranks.call("split_data", [dict(x_train=x, y_train=x[:, 0], mp_size=2, dp_size=4, rank=r) for r in range(8)])
plots.holdings(x, [a[0] for a in answers], "The samples on each rank, mp_size=2, dp_size=4", ("samples", "features"))

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Splitting moves nothing between ranks: each one takes its part of what it has already loaded. What it saves is memory and work. The chart
# shows how much memory the images take up on one rank, first if every rank keeps all the data, then if each keeps only its part, for every
# grid of eight ranks.

# %% Draw the memory tags=["folded"]
data = datasets.load("digits")
held = {"all of it": data.x_train.nbytes}
for mesh in reversed(grids(8)):
    arguments = dict(x_train=data.x_train, y_train=data.y_train, mp_size=mesh.mp, dp_size=mesh.dp, rank=0)
    split_x, _ = ranks.call("split_data", arguments)[0]
    held[f"mp_size {mesh.mp}, dp_size {mesh.dp}"] = split_x.nbytes
plots.bars(held, "Images of handwritten digits on rank 0", "bytes")

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. `x_train[a:b]` is a view: it keeps the whole array alive. When does a rank really need less memory?
# 2. `split_data` does not shuffle. What goes wrong in training if the data is sorted by class and each rank gets one slice?
#
# The last cells save your function to `data_parallel_preprocess.py`, where part 10 finds it, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "split_data")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They call your function with other sizes.

# %% Test: the rows of every grid tags=["test"] points=7
### BEGIN HIDDEN TESTS
check = Check("split_data", show=False)
for mesh in grids(8):
    n, width = mesh.dp * check.sizes(1, 2, 6)[0], check.sizes(1, 1, 5)[0]
    x, y = check.random.random((n, width)), check.random.permutation(n)
    check.case = f"mp_size {mesh.mp}, dp_size {mesh.dp}, {n} samples"
    sizes = dict(x_train=x, y_train=y, mp_size=mesh.mp, dp_size=mesh.dp)
    answers = ranks.call("split_data", [sizes | {"rank": r} for r in range(8)])
    for r, answer in enumerate(answers):
        split_x, split_y = check.tuple(answer, 2, name="split_data", rank=r)
        copy, each = mesh.coordinates(r)[0], n // mesh.dp
        cause = "ranks of the same model parallel group that get different samples, or samples in another order"
        check.array(split_x, x[copy * each :][:each], name="split_x_train", rank=r, cause=cause, dtype=False)
        check.array(split_y, y[copy * each :][:each], name="split_y_train", rank=r, cause=cause, dtype=False)
### END HIDDEN TESTS

# %% Test: other sizes, shapes and dtypes tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = Check("split_data", show=False)
dtypes = check.random.permutation([np.float32, np.float64, np.uint8, np.int32])  # each of them once, so that none is missed by chance
for mesh, dtype in zip((Mesh(dp=1, mp=1), Mesh(dp=2, mp=2), Mesh(dp=3, mp=2), Mesh(dp=4, mp=3)), dtypes, strict=True):
    n = mesh.dp * check.sizes(1, 2, 6)[0]
    x = check.random.permutation(n * 6).reshape(n, 3, 2).astype(dtype)
    y = check.random.permutation(n * 10).reshape(n, 10).astype(np.int16)
    check.case = f"mp_size {mesh.mp}, dp_size {mesh.dp}, images of shape {x.shape} and {x.dtype}"
    sizes = dict(x_train=x, y_train=y, mp_size=mesh.mp, dp_size=mesh.dp)
    for first in range(0, mesh.size, 8):
        asked = [(first + r) % mesh.size for r in range(8)]
        answers = ranks.call("split_data", [sizes | {"rank": r} for r in asked])
        for r, answer in zip(asked, answers, strict=True):
            split_x, split_y = check.tuple(answer, 2, name="split_data", rank=r)
            copy, each = mesh.coordinates(r)[0], n // mesh.dp
            cause = "a size or dtype that is hard-coded in the function instead of taken from its arguments"
            check.array(split_x, x[copy * each :][:each], name="split_x_train", rank=r, cause=cause)
            check.array(split_y, y[copy * each :][:each], name="split_y_train", rank=r, cause=cause)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
