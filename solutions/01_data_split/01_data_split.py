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
# We number the ranks row by row: with `mp_size=2` and `dp_size=4`, ranks 0 and 1 hold the first copy of the model, ranks 2 and 3 the second,
# and so on. In a mesh with the axes (dp, mp), mp is then the *minor* axis: the one along which neighboring ranks lie.

# %% Start the ranks tags=["given", "slide"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check.grid.split_data import SplitDataCheck
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
SplitDataCheck("split_data with mp_size=2, dp_size=4", ranks).by_hand(mesh)

# %% [markdown] tags=["slide"]
# ## See it
#
# These are the samples that your ranks really hold. Ranks in the same row of the grid hold the same samples, and together the rows hold all
# of them.

# %% Draw who holds what tags=["folded"]
mp_size, dp_size, samples, features = 2, 4, 1440, 4  # mp_size * dp_size is at most 8

x = np.arange(samples * features).reshape(samples, features)
given = dict(x_train=x, y_train=x[:, 0], mp_size=mp_size, dp_size=dp_size)
answers = ranks.call("split_data", [given | {"rank": r} for r in range(8)])[: mp_size * dp_size]
title = f"The samples on each rank, mp_size={mp_size}, dp_size={dp_size}"
plots.holdings(x, [a[0] for a in answers], title, ("samples", "features"))

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Splitting moves nothing between ranks: each one takes its part of what is already loaded. It divides the work by `dp_size`. Memory is
# another matter. A slice such as `x_train[a:b]` is a **view**, which keeps the whole array alive, so a rank that only slices still holds all
# the data. It needs less if it copies its part and lets go of the rest. The chart shows both, for every grid of eight ranks: the memory that
# stays in use because of what your function returned, and because of a copy of it.


# %% Draw the memory tags=["folded"]
def kept(samples, features, mp_size, dp_size):
    images = np.zeros((samples, features))
    part, _ = split_data(images, images[:, 0], mp_size, dp_size, rank)
    whole = part
    while isinstance(whole.base, np.ndarray):  # the array that a view looks into
        whole = whole.base
    return whole.nbytes, part.copy().nbytes


samples, features = 1440, 64  # the digits' training images

held = {}
for grid in reversed(grids(8)):
    sizes = dict(samples=samples, features=features, mp_size=grid.mp, dp_size=grid.dp)
    held[f"dp_size {grid.dp}, as returned"], held[f"dp_size {grid.dp}, a copy"] = ranks.call(kept, sizes)[0]
plots.bars(held, "Memory that rank 0 keeps in use: the returned array, or a copy of it", "bytes")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `DistributedSampler` (`torch/utils/data/distributed.py`) deals indices instead of cutting arrays: rank r gets every n-th,
#   `indices[r:total:n]`, after a shuffle with `seed + epoch`; call `set_epoch`. It pads with repeated samples where n does not divide.
# - JAX: `jax.make_array_from_process_local_data` joins what each process has loaded into one array that is sharded over the batch.
# - Megatron-LM: `MegatronPretrainingSampler` (`megatron/training/datasets/data_samplers.py`) does not cut the data set: of every `dp_size`
#   consecutive micro-batches, each data parallel rank takes one. The ranks of a tensor parallel group do not load it again: their first
#   rank broadcasts it, see `get_batch_on_this_tp_rank` (`megatron/core/utils.py`).
# - DeepSpeed: `DeepSpeedDataLoader` (`deepspeed/runtime/dataloader.py`) uses a `DistributedSampler` over the data parallel ranks.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. The ranks of a row need the same samples. Each can read them from disk, or one can read and broadcast them. When is which better?
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
check = SplitDataCheck("split_data", ranks, show=False)
for grid in grids(8):
    check.table(grid)
### END HIDDEN TESTS

# %% Test: other sizes, shapes and dtypes tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = SplitDataCheck("split_data", ranks, show=False)
check.images(Mesh(dp=1, mp=1), Mesh(dp=2, mp=2), Mesh(dp=3, mp=2), Mesh(dp=4, mp=3))
check.turns()
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
