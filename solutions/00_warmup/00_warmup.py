# ---
# jupyter:
#   course:
#     ranks: 8
# ---

# %% [markdown] tags=["slide"]
# # 00 Warm-up: four collectives
#
# To train a model on several devices, you run a copy of the same program on each of them, and the copies exchange arrays. In this notebook
# you start eight copies on your own machine and try out the four operations that most of this course is built on: **all-reduce**,
# **all-gather**, **reduce-scatter**, and **split**, which forms smaller groups.
#
# *Nothing to grade. About 20 minutes.* For each operation, write down what you expect one rank to hold afterwards, run it, and compare with
# the picture of what all ranks hold.

# %% [markdown] tags=["slide"]
# ## Eight processes
#
# Each process has a number, its *rank*, and the process itself is called a rank too. Ranks share no variables: if one rank needs something
# that another rank has, it has to be sent. The next cell starts eight ranks. After that, every cell whose first line is `%%px` runs on all
# of them. All other cells run here, in the notebook's own process.

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.collectives import ring

ranks = cluster.start(8)
ranks

# %% Say hello tags=["given", "skip"]
# %%px
import numpy as np
from mpi4py import MPI

from course_lib.collectives import Communicator

comm = Communicator()
rank, size = comm.Get_rank(), comm.Get_size()
print(f"There are {size} of us.")

# %% [markdown] tags=["slide"]
# **MPI** (Message Passing Interface) is the most common standard for exchanging arrays between processes, and mpi4py is the Python package
# for it. `comm` is a *communicator*: it stands for a group of ranks. Here the group contains all of them; error messages call it *world*. A
# call that all ranks of a group make together is a *collective*. The methods of `comm` have the same names as in mpi4py. In addition,
# `comm` checks your arrays before it sends them, and it never hangs. When all ranks print the same thing, you see it once. When they print
# different things, you see who printed what:

# %% Print the rank
# %%px
print("I am", "even" if rank % 2 == 0 else "odd")

# %% [markdown] tags=["slide"]
# ## All-reduce
#
# `comm.Allreduce(before, after, op=...)` combines the arrays of all ranks element by element and writes the result into `after` on *every*
# rank; the call itself returns nothing. By default it computes the sum. Here we take the minimum:
#
# $$\text{after}[i] = \min_r \; \text{before}_r[i].$$
#
# Rank $r$ starts with $[\,r,\; 7 - r,\; 3r \bmod 8 + 1\,]$. What will rank 2 hold? Replace the `None`s with your three numbers. The cell
# that draws the picture calls `ranks.pull("before")`, which fetches a variable from all ranks and returns a list.

# %% Predict the all-reduce
# %%px
prediction = [None, None, None]  # your guess for rank 2

# %% Run the all-reduce
# %%px
before = np.array([rank, 7 - rank, 3 * rank % 8 + 1])
after = np.empty_like(before)
comm.Allreduce(before, after, op=MPI.MIN)

# %% Draw the all-reduce tags=["folded", "slide"]
plots.exchange(
    ranks.pull("before"),
    ranks.pull("after"),
    "Allreduce with op=MIN: every rank gets the minimum of each column",
    (2, ranks.pull("prediction")[2]),
)

# %% [markdown]
# A dark frame marks a right guess, a red frame a wrong one. If you like, change `op` to `MPI.MAX` or `MPI.SUM` and run it again.

# %% [markdown] tags=["slide-50"]
# ## All-gather
#
# `comm.Allgather(before, after)` joins the arrays of all ranks end to end, in rank order. Nothing is added up, so `after` needs room for
# eight times as much. Each rank contributes two numbers, $[\,10r,\; 10r + 1\,]$. Which sixteen numbers does rank 5 end up with?

# %% Predict the all-gather
# %%px
prediction = [None] * 16  # your guess for rank 5: sixteen numbers

# %% Run the all-gather
# %%px
before = np.array([10 * rank, 10 * rank + 1])
after = np.empty(2 * size, dtype=before.dtype)
comm.Allgather(before, after)

# %% Draw the all-gather tags=["folded", "slide-50"]
plots.exchange(
    ranks.pull("before"),
    ranks.pull("after"),
    "Allgather: every rank gets all arrays, in rank order",
    (5, ranks.pull("prediction")[5]),
)

# %% [markdown] tags=["slide-50"]
# ## Reduce-scatter
#
# `comm.Reduce_scatter(before, after)` adds up the arrays just as an all-reduce does, but each rank keeps only its own part of the sum: rank
# 0 the first eighth, rank 1 the second, and so on. Rank $r$ starts with $10\,r + [0, 1, \dots, 7]$. Which single number does rank 3 end up
# with?

# %% Predict the reduce-scatter
# %%px
prediction = [None]  # your guess for rank 3

# %% Run the reduce-scatter
# %%px
before = 10 * rank + np.arange(size)
after = np.empty(1, dtype=before.dtype)
comm.Reduce_scatter(before, after)

# %% Draw the reduce-scatter tags=["folded", "slide-50"]
plots.exchange(
    ranks.pull("before"),
    ranks.pull("after"),
    "Reduce_scatter: the sum of all arrays, one part on each rank",
    (3, ranks.pull("prediction")[3]),
)

# %% [markdown]
# A reduce-scatter followed by an all-gather gives the same result as an all-reduce. Later parts use this to save memory.

# %% [markdown] tags=["slide-50"]
# ## Split
#
# `comm.Split(color, key)` forms smaller groups: ranks with the same *color* end up in the same group, and *key* sets their order in it. A
# collective on the new group involves only its own ranks. Here the color is `rank % 2`, so the even ranks form one group and the odd ranks
# another. Each rank contributes its own number. What sum does rank 6 get?

# %% Predict the sum in a group
# %%px
prediction = [None]  # your guess for rank 6

# %% Run the sum in a group
# %%px
group = comm.Split(color=rank % 2, key=rank)
before = np.array([rank])
after = np.empty_like(before)
group.Allreduce(before, after)

# %% Draw the sum in a group tags=["folded", "slide-50"]
plots.exchange(
    ranks.pull("before"),
    ranks.pull("after"),
    "Allreduce after Split: even ranks add up their numbers, and so do the odd ones",
    (6, ranks.pull("prediction")[6]),
)

# %% [markdown] tags=["slide"]
# ## When a rank does not show up
#
# A collective needs every rank of its group. The cell below leaves one out, which is the most common mistake in this field. With plain MPI,
# the other seven processes would now wait until you kill them. Run the cell and read the message. After the error, the next cell works as
# usual.

# %% Forget a rank tags=["given", "raises-exception"]
# %%px
if rank != 4:
    comm.Allreduce(np.ones(3), np.empty(3))

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# How much data does each of these operations send? The whole array has 8,000 numbers of 8 bytes each, which is 64 kB. In the all-gather,
# each rank contributes an eighth of it. If the $n$ ranks form a ring, each of them sends $2\frac{n-1}{n}$ times the size of the array in an
# all-reduce, and half of that in an all-gather or a reduce-scatter.
#
# The next cell has no `%%px`, so it runs in the notebook. It uses `ranks.call(function, arguments)`, which sends a function from the
# notebook to all ranks and calls it there. On the ranks, the function can use `comm`, `group` and everything else that your `%%px` cells
# have defined.


# %% Count the bytes tags=["folded", "slide-50"]
def one_of(operation):
    full, part = np.ones(8000), np.ones(1000)
    if operation == "Allreduce":
        comm.Allreduce(full, np.empty(8000))
    elif operation == "Allgather":
        comm.Allgather(part, np.empty(8000))
    elif operation == "Reduce_scatter":
        comm.Reduce_scatter(full, np.empty(1000))
    else:
        group.Allreduce(full, np.empty(8000))


alternatives = ["Allreduce", "Allgather", "Reduce_scatter", "Allreduce in a group of 4"]
moved = []
for operation in alternatives:
    ranks.call(one_of, {"operation": operation})
    moved.append(ranks.traffic[0])
plots.traffic(moved, "What rank 0 sends for 8,000 numbers of 8 bytes each", alternatives)

# %% [markdown] tags=["slide"]
# Where does $2\frac{n-1}{n}$ come from? The picture below shows another all-reduce on your ranks, step by step. Each array is cut into
# eight pieces. In each step, every rank sends one piece to the next rank: first the pieces are added up along the way, then the finished
# sums travel around the ring. Dark pieces are finished. Press the button or move the slider.

# %% Draw a ring tags=["folded"]
arrays = [dict(mine=10.0 ** (r % 3) * np.arange(1, 9)) for r in range(8)]
plots.ring(ranks.call(ring.allreduce, arrays), ranks.call(ring.allreduce, dict(mine=np.ones(8))), "A ring all-reduce")

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. Eight ranks hold the same model, and each has its own gradient. Which of the four operations would you use to give all of them the mean
#    gradient, and what would you divide by?
# 2. In an all-reduce, *each rank* sends nearly twice the size of the array, whether 8 or 800 ranks take part. Why does it not send more
#    when there are more ranks?

# %% Stop the ranks tags=["given"]
ranks.stop()
