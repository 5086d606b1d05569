# ---
# jupyter:
#   course:
#     ranks: 8
# ---

# %% [markdown] tags=["slide"]
# # 02 Process groups
#
# **You will build** `get_info`, which works out a rank's place in the grid, the two groups it communicates in, and the size of its part of
# a layer.
#
# *{points} points. About 40 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check.grid.on_ranks import reach_groups
from course_lib.check.grid.process_groups import ProcessGroupsCheck
from course_lib.mesh import Mesh, grids

ranks = cluster.start(8)
mesh = Mesh(dp=2, mp=4)
plots.groups(mesh, "mp_size=4, dp_size=2")

# %% [markdown] tags=["slide"]
# Each rank is in one row and one column. Along its row (**mp group**) it exchanges activations (its layers' outputs), because the ranks of
# a row hold one model together. Along its column (**dp group**) it exchanges gradients, because the ranks of a column hold the same part of
# the model. Its index in the row is `mp_idx`, and in the column `dp_idx`. In the picture, rank 6 has `mp_idx` 2 and `dp_idx` 1.
#
# The ranks are numbered along the first row, then along the second, so neighbors in a row have consecutive numbers. In a mesh with the axes
# (dp, mp), mp is the *minor* axis, along which the number changes fastest: `rank = dp_idx * mp_size + mp_idx`.

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np

from course_lib.collectives import Communicator

comm = Communicator()
rank = comm.Get_rank()

# %% [markdown] tags=["slide"]
# ## A worked example
#
# All ranks call `comm.Split(color, key)`. Those that pass the same color form a group, and the key sets their order in it. Here the first
# four ranks form one group and the last four another, each in reverse order. Change the color and the key and see what happens.

# %% Split in halves
# %%px
half = comm.Split(color=rank // 4, key=-rank)
print(f"world rank {rank} is rank {half.Get_rank()} of {half.Get_size()} in its half")

# %% [markdown] tags=["slide"]
# ## The parts of a layer
#
# The model of parts 03 to 07 and 10 is a *perceptron*: a fully connected layer (fc1), then ReLU (which turns negative numbers into 0), then
# another fully connected layer (fc2). The arrays passed from layer to layer are the *activations*. The output of fc1 is the *hidden layer*,
# and its columns are the *hidden units*.
#
# A fully connected layer multiplies its input by a weight of shape `(in_dim, out_dim)`. The ranks of an mp group split it among themselves:
#
# | style | fc1 (first layer) | fc2 (second layer) |
# |---|---|---|
# | naive | columns: `(in_dim, out_dim / mp_size)` | columns: `(in_dim, out_dim / mp_size)` |
# | Megatron | columns: `(in_dim, out_dim / mp_size)` | rows: `(in_dim / mp_size, out_dim)` |
#
# Part 04 explains why Megatron splits the second layer by rows (Shoeybi et al., 2019, "Megatron-LM", section 3).

# %% [markdown] tags=["slide-50"]
# ## Your turn
#
# All ranks call `get_info` together, so all of them make the same two calls to `Split`.


# %% Exercise: get_info tags=["exercise", "slide-50"]
# %%px
def get_info(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Find this rank's place in the grid, its groups, and its part of a layer.

    Parameters
    ----------
    comm : Communicator
        All ``mp_size * dp_size`` ranks.
    rank : int
        This rank's number in `comm`. The grid is numbered row by row.
    mp_size, dp_size : int
        Number of ranks in a model parallel and in a data parallel group.
    is_fc1 : bool
        Whether the layer is the first one (True) or the second one (False).
    is_megatron_mp : bool
        Whether the style is Megatron's (True) or naive (False).
    in_dim, out_dim : int
        Shape of the whole weight; mp_size divides both.

    Returns
    -------
    mp_idx, dp_idx : int
        This rank's index in its model parallel group and in its data parallel group.
    mp_comm, dp_comm : Communicator
        The two groups, in rank order.
    part_in_dim, part_out_dim : int
        Shape of this rank's part of the weight.
    """
    ### BEGIN SOLUTION
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    mp_comm = comm.Split(color=dp_idx, key=mp_idx)
    dp_comm = comm.Split(color=mp_idx, key=dp_idx)
    part_in_dim, part_out_dim = in_dim, out_dim
    if is_megatron_mp and not is_fc1:
        part_in_dim = in_dim // mp_size
    else:
        part_out_dim = out_dim // mp_size
    return mp_idx, dp_idx, mp_comm, dp_comm, part_in_dim, part_out_dim
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# The check calls your function on all ranks. Then the members of every group exchange a number that identifies them, because what counts is
# which ranks a group really reaches.

# %% Check tags=["given"]
title = "get_info for all grids of 8 and 4 ranks and all kinds of layers"
ProcessGroupsCheck(title, ranks).by_hand(mesh, 8, 4)

# %% [markdown] tags=["slide"]
# ## See it
#
# This is the grid according to your own groups: each rank reports which ranks it reached.

# %% Draw your groups tags=["folded"]
mp_size, dp_size = 2, 4  # mp_size * dp_size is at most 8

asked = dict(size=mp_size * dp_size, mp_size=mp_size, dp_size=dp_size)
answers = ranks.call(reach_groups, [asked | {"secret": r} for r in range(8)])[: mp_size * dp_size]
mp_groups = sorted({tuple(a[2].tolist()) for a in answers})
dp_groups = sorted({tuple(a[3].tolist()) for a in answers})
plots.groups({"mp": mp_groups, "dp": dp_groups}, f"Your groups for mp_size={mp_size}, dp_size={dp_size}")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Why is the gradient averaged in the dp group and not among all ranks? Because only the ranks of a column hold the same part of the model:
# an average over all eight would mix the gradients of different weights. It would also send more, but above all it would be wrong.
#
# The grid decides what the average costs. A weight of 1 MB is split over the mp group, so each rank has a gradient of 1 MB / `mp_size`, and
# averages it among `dp_size` ranks. This is what rank 0 sends in every grid of eight ranks.


# %% Count the bytes tags=["folded"]
def average_gradient(mp_size, dp_size, numbers):
    *_, dp_comm, _, _ = get_info(Communicator(), rank, mp_size, dp_size, True, False, 8, 8)
    dp_comm.Allreduce(np.ones(numbers // mp_size), np.empty(numbers // mp_size))


numbers = 125_000  # of 8 bytes each, in the whole weight

moved, names = [], []
for grid in grids(8):
    ranks.call(average_gradient, dict(mp_size=grid.mp, dp_size=grid.dp, numbers=numbers))
    moved.append(ranks.traffic[0])
    names.append(f"mp_size {grid.mp}, dp_size {grid.dp}")
plots.traffic(moved, f"What rank 0 sends to average the gradient of a weight of {8 * numbers / 1e6:g} MB", names)

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))` numbers row by row, as we do, and `mesh.get_group("tp")` is our
#   `mp_comm` (`torch/distributed/device_mesh.py`). Without a mesh: `torch.distributed.new_group(ranks)`, which takes a list of ranks instead
#   of a color, and which all ranks must call for every group, also for those that they are not in.
# - JAX: `jax.make_mesh((2, 4), ("dp", "tp"))`; it may reorder the devices to fit the hardware. A collective names its axis, not a group.
# - Megatron-LM: `initialize_model_parallel(..., order="tp-cp-ep-dp-pp")` (`megatron/core/parallel_state.py`) names the minor axis first.
# - DeepSpeed: `PipeModelDataParallelTopology` has the axes `['pipe', 'data', 'model']`, the minor one last
#   (`deepspeed/runtime/pipe/topology.py`).
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. Eight ranks run on two machines with four cores each, and the connection between the machines is slow. Which of a rank's two groups
#    should stay within one machine?
# 2. All ranks have to call `Split`, even those whose group you do not need. Why is there no way around that?
#
# The last cells save your function to `func_impl.py`, where part 10 finds it, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "get_info")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They call your function with other grids and layers.

# %% Test: the place in the grid tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = ProcessGroupsCheck("get_info", ranks, show=False)
for size in (8, 6, 4, 1):
    for grid in grids(size):
        check.place(size, grid)
### END HIDDEN TESTS

# %% Test: the groups tags=["test"] points=10
### BEGIN HIDDEN TESTS
check = ProcessGroupsCheck("get_info", ranks, show=False)
for size in (8, 6, 4):
    for grid in grids(size):
        check.members(size, grid)
### END HIDDEN TESTS

# %% Test: the part of a layer tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = ProcessGroupsCheck("get_info", ranks, show=False)
for grid in (*grids(8), *grids(6)):
    check.layers(grid)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
