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
from course_lib.check import Check
from course_lib.mesh import Mesh, grids

ranks = cluster.start(8)
mesh = Mesh(dp=2, mp=4)
plots.groups(mesh, "mp_size=4, dp_size=2")

# %% [markdown] tags=["slide"]
# Each rank is in one row and one column. Along its row (**mp group**) it exchanges activations (its layers' outputs), because the ranks of
# a row hold one model together. Along its column (**dp group**) it exchanges gradients, because the ranks of a column hold the same part of
# the model. Its index in the row is `mp_idx`, and in the column `dp_idx`. In the picture, rank 6 has `mp_idx` 2 and `dp_idx` 1.
#
# The ranks are numbered along the first row, then along the second, so neighbours in a row have consecutive numbers. This order is called
# *model-parallel-major*.

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
# The model of parts 02 to 10 is a *perceptron*: a fully connected layer (fc1), then ReLU (which turns negative numbers into 0), then
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
        This rank's number in `comm`. The grid is model-parallel-major.
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
# `look` runs on each rank. It calls your function and then has the members of every group exchange a number that identifies them, because
# what counts is which ranks a group really reaches.


# %% A look at the groups tags=["given", "skip"]
def look(size, secret, mp_size, dp_size, is_fc1=True, is_megatron_mp=False, in_dim=8, out_dim=8):
    everyone = Communicator()
    part = everyone.Split(color=int(everyone.Get_rank() >= size), key=everyone.Get_rank())
    if everyone.Get_rank() >= size:
        return None  # this grid needs fewer ranks
    answer = get_info(part, part.Get_rank(), mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim)
    if not isinstance(answer, (tuple, list)) or len(answer) != 6:
        return answer
    mp_idx, dp_idx, mp_comm, dp_comm, part_in_dim, part_out_dim = answer
    members = []
    for name, group in (("mp_comm", mp_comm), ("dp_comm", dp_comm)):
        if not hasattr(group, "Allgather"):
            order = "mp_idx, dp_idx, mp_comm, dp_comm, part_in_dim, part_out_dim"
            raise TypeError(f"get_info must return {order}, in this order; got {group!r} instead of {name}.")
        found = np.empty(group.Get_size(), np.int64)
        group.Allgather(np.array([secret], np.int64), found)
        members.append(found)
    return mp_idx, dp_idx, *members, part_in_dim, part_out_dim


# %% Check tags=["given"]
check = Check("get_info for all grids of 8 and 4 ranks and all kinds of layers")
swapped = "color and key swapped: the color is what all members share"
split = "only Megatron's second layer is split by rows (in_dim); all others are split by columns (out_dim)"
for size, grid in ((8, mesh), *((n, some) for n in (8, 4) for some in grids(n))):
    for is_fc1, is_megatron_mp in ((True, False), (False, False), (True, True), (False, True)):
        mp_size, layer = grid.mp, dict(is_fc1=is_fc1, is_megatron_mp=is_megatron_mp, in_dim=16, out_dim=24)
        check.case = f"mp_size {mp_size}, dp_size {grid.dp}, " + ", ".join(f"{k} {v}" for k, v in layer.items())
        each = [dict(size=size, secret=r, mp_size=mp_size, dp_size=grid.dp, **layer) for r in range(8)]
        rows = is_megatron_mp and not is_fc1
        answers = ranks.call(look, each, show=grid is mesh and is_fc1 and not is_megatron_mp)
        answers = [check.tuple(answer, 6, name="get_info", rank=r) for r, answer in enumerate(answers[:size])]
        for r, (mp_idx, dp_idx, *_) in enumerate(answers):
            check.value(mp_idx, r % mp_size, name="mp_idx", rank=r, cause="the index in the row is the remainder of rank / mp_size")
            check.value(dp_idx, r // mp_size, name="dp_idx", rank=r, cause="the index in the column is rank / mp_size, rounded down")
        for r, (_, _, in_mp, in_dp, part_in, part_out) in enumerate(answers):
            row, column = grid.groups("mp")[r // mp_size], grid.groups("dp")[r % mp_size]
            if list(in_mp) == list(column) != list(row) and list(in_dp) == list(row):
                check.fail(f"on rank {r}, mp_comm has the ranks of dp_comm and vice versa", f"{swapped}; or returned in the wrong order")
            for name, got, want in (("mp_comm", list(in_mp), list(row)), ("dp_comm", list(in_dp), list(column))):
                if got != want:
                    inside = f"split from {'d' if name[0] == 'm' else 'm'}p_comm instead of comm"
                    order = "a key that does not keep the ranks in order"
                    fewer = len(got) < len(want) and set(got) < set(want)
                    why = order if sorted(got) == sorted(want) else inside if fewer else swapped
                    check.fail(f"{name} on rank {r} contains ranks {[int(g) for g in got]}, expected {want}", why)
            check.value(part_in, 16 // mp_size if rows else 16, name="part_in_dim", rank=r, cause=split)
            check.value(part_out, 24 if rows else 24 // mp_size, name="part_out_dim", rank=r, cause=split)
check.passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# This is the grid according to your own groups: each rank reports which ranks it reached.

# %% Draw your groups tags=["folded"]
answers = ranks.call(look, [dict(size=8, secret=r, mp_size=2, dp_size=4) for r in range(8)])
mp_groups = sorted({tuple(a[2].tolist()) for a in answers})
dp_groups = sorted({tuple(a[3].tolist()) for a in answers})
plots.groups({"mp": mp_groups, "dp": dp_groups}, "Your groups for mp_size=2, dp_size=4")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Groups save traffic. Suppose each rank has a gradient of 1 MB for its part of the model. The two upper bars show what it costs to average
# it within the dp groups. The bottom bar shows what it would cost if all eight ranks took part.


# %% Count the bytes tags=["folded"]
def average_gradient(mp_size, dp_size):
    *_, dp_comm, _, _ = get_info(Communicator(), Communicator().Get_rank(), mp_size, dp_size, True, False, 8, 8)
    dp_comm.Allreduce(np.ones(125_000), np.empty(125_000))


moved = []
for mesh in (Mesh(dp=2, mp=4), Mesh(dp=4, mp=2), Mesh(dp=8, mp=1)):
    ranks.call(average_gradient, dict(mp_size=mesh.mp, dp_size=mesh.dp))
    moved.append(ranks.traffic[0])
plots.traffic(moved, "What rank 0 sends to average 1 MB", ["dp_size 2", "dp_size 4", "all 8 ranks"])

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
check = Check("get_info", show=False)
for size in (8, 6, 4, 1):
    for mesh in grids(size):
        check.case = f"mp_size {mesh.mp}, dp_size {mesh.dp}"
        sizes = dict(size=size, mp_size=mesh.mp, dp_size=mesh.dp, secret=0, in_dim=24, out_dim=24)
        for r, answer in enumerate(ranks.call(look, sizes)[:size]):
            mp_idx, dp_idx, *_ = check.tuple(answer, 6, name="get_info", rank=r)
            row, column = mesh.coordinates(r)
            check.value(mp_idx, column, name="mp_idx", rank=r, cause="a grid that is not model-parallel-major: number the ranks row by row")
            check.value(dp_idx, row, name="dp_idx", rank=r, cause="a grid that is not model-parallel-major: number the ranks row by row")
### END HIDDEN TESTS

# %% Test: the groups tags=["test"] points=10
### BEGIN HIDDEN TESTS
check = Check("get_info", show=False)
for size in (8, 6, 4):
    for mesh in grids(size):
        check.case = f"mp_size {mesh.mp}, dp_size {mesh.dp}"
        secrets = check.random.permutation(10**6)[:8]
        sizes = dict(size=size, mp_size=mesh.mp, dp_size=mesh.dp, in_dim=24, out_dim=24)
        answers = ranks.call(look, [sizes | {"secret": int(secret)} for secret in secrets])
        for r, answer in enumerate(answers[:size]):
            _, _, in_mp, in_dp, _, _ = check.tuple(answer, 6, name="get_info", rank=r)
            row, column = mesh.coordinates(r)
            cause = "color and key swapped, or members that are not in rank order"
            check.array(in_mp, secrets[list(mesh.groups("mp")[row])], name="mp_comm (the ranks in it)", rank=r, cause=cause)
            check.array(in_dp, secrets[list(mesh.groups("dp")[column])], name="dp_comm (the ranks in it)", rank=r, cause=cause)
### END HIDDEN TESTS

# %% Test: the part of a layer tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = Check("get_info", show=False)
for mesh in grids(8):
    for is_fc1 in (True, False):
        for is_megatron_mp in (True, False):
            in_dim, out_dim = (mesh.mp * int(d) for d in check.random.permutation(np.arange(2, 40))[:2])
            layer = dict(is_fc1=is_fc1, is_megatron_mp=is_megatron_mp, in_dim=in_dim, out_dim=out_dim)
            check.case = f"mp_size {mesh.mp}, " + ", ".join(f"{k} {v}" for k, v in layer.items())
            answers = ranks.call(look, layer | dict(size=8, secret=0, mp_size=mesh.mp, dp_size=mesh.dp))
            rows = is_megatron_mp and not is_fc1
            for r, answer in enumerate(answers):
                *_, part_in, part_out = check.tuple(answer, 6, name="get_info", rank=r)
                cause = "only Megatron's second layer is split by rows (in_dim); all others by columns (out_dim)"
                check.value(part_in, in_dim // mesh.mp if rows else in_dim, name="part_in_dim", rank=r, cause=cause)
                check.value(part_out, out_dim if rows else out_dim // mesh.mp, name="part_out_dim", rank=r, cause=cause)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
