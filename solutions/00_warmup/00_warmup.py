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
# **all-gather**, **reduce-scatter**, and **split**, which forms smaller groups. At the end you measure how long an all-reduce takes.
#
# *Nothing to grade. About 30 minutes.* For each operation, write down what you expect one rank to hold afterwards, run it, and compare with
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
from course_lib.plots import alpha_beta

ranks = cluster.start(8)
ranks

# %% Say hello tags=["given", "skip"]
# %%px
import numpy as np
from mpi4py import MPI

from course_lib.collectives import Communicator
from course_lib.plots import alpha_beta

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

# %% [markdown] tags=["slide-50"]
# ## How to read the pictures
#
# All pictures of this course speak the same language. Where a picture shows what ranks hold, each rank has a color. Where it shows time,
# each row is a rank, and colors stand for kinds of work. The next cell draws the rest. Come back to it when a picture puzzles you. In
# JupyterLab's dark theme the greys change places and the colors stay.

# %% Draw the legend tags=["folded", "slide-50"]
plots.legend()

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

# %% Forget a rank tags=["raises-exception"]
# %%px
missing = 4
if rank != missing:
    comm.Allreduce(np.ones(3), np.empty(3))

# %% [markdown] tags=["skip"]
# You can also watch the ranks while they work: add a cell with `ranks.panel()` and run it. It shows at any time what each rank does, and for
# which other ranks it waits.

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
def one_of(operation, numbers):
    full, part = np.ones(numbers), np.ones(numbers // size)
    if operation == "Allreduce":
        comm.Allreduce(full, np.empty_like(full))
    elif operation == "Allgather":
        comm.Allgather(part, np.empty(len(part) * size))
    elif operation == "Reduce_scatter":
        comm.Reduce_scatter(full, np.empty_like(part))
    else:
        group.Allreduce(full, np.empty_like(full))


numbers = 8000  # of 8 bytes each; a multiple of 8

alternatives = ["Allreduce", "Allgather", "Reduce_scatter", "Allreduce in a group of 4"]
moved = []
for operation in alternatives:
    ranks.call(one_of, {"operation": operation, "numbers": numbers})
    moved.append(ranks.traffic[0])
plots.traffic(moved, f"What rank 0 sends for {numbers:,} numbers of 8 bytes each", alternatives)

# %% [markdown] tags=["slide"]
# Where does $2\frac{n-1}{n}$ come from? The picture below shows, step by step, a ring all-reduce of other arrays. Each one is cut into
# eight pieces. In each step, every rank sends one piece to the next rank: first the pieces are added up along the way, then the finished
# sums travel around the ring. The stronger the grey of a piece, the more ranks it has been added up from. Press the button or move the
# slider.

# %% Draw a ring tags=["folded"]
arrays = [dict(mine=10.0 ** (r % 3) * np.arange(1, 9)) for r in range(8)]
plots.ring(ranks.call(ring.allreduce, arrays), ranks.call(ring.allreduce, dict(mine=np.ones(8))), "A ring all-reduce")

# %% [markdown] tags=["slide-50"]
# ## How long it takes
#
# Bytes are not time. An all-reduce of a single number also takes a while: all ranks have to announce their arrival and wait for each other.
# To a good approximation, an all-reduce of $n$ bytes takes
#
# $$T(n) = \alpha + \frac{n}{\beta},$$
#
# where $\alpha$ is the **latency** in seconds and $\beta$ the **bandwidth** in bytes per second. Both depend on the machine and on the number
# of ranks. (Many papers write $n\beta$, with $\beta$ as the time of one byte.) Which sizes cost $\alpha$ only? From which size on is the time
# proportional to the size? Guess both numbers for your machine, then measure.

# %% [markdown] tags=["slide-50"]
# `alpha_beta.measure` lets all ranks meet at a barrier and then times the call, 15 times for each size. It returns the median of the slowest
# rank's times, which a few disturbed repetitions do not change.

# %% Measure the all-reduce
# %%px
number = 4  # ranks that take part
sizes = [8 * 4**i for i in range(11)]  # bytes, from 8 B to 8 MB

some = comm.Split(color=int(rank >= number), key=rank)
times = alpha_beta.measure(some, sizes) if rank < number else None

# %% [markdown] tags=["slide-50"]
# `alpha_beta.fit` finds the two numbers with which $T(n)$ fits the times best. It uses errors relative to the measured time, so that small
# sizes count as much as large ones. The two numbers then say how long a size takes that was not measured. How far off will the prediction
# be?


# %% Fit, predict, and measure what was predicted
def measure_again(nbytes):
    return alpha_beta.measure(some, [nbytes])[0] if rank < number else None


sizes, times = ranks.pull("sizes")[0], ranks.pull("times")[0]
alpha, beta = alpha_beta.fit(sizes, times)
print(f"alpha = {1e6 * alpha:.0f} microseconds, beta = {beta / 1e9:.2f} GB/s")

nbytes = 1_000_000  # a size that was not measured
predicted = alpha + nbytes / beta
measured = ranks.call(measure_again, {"nbytes": nbytes})[0]
print(f"predicted {1e6 * predicted:.0f}, measured {1e6 * measured:.0f} microseconds")

# %% Draw the times tags=["folded", "slide-50"]
title = "Time of an all-reduce, measured, fitted and predicted"
alpha_beta.draw(sizes, times, alpha, beta, title, (nbytes, measured))

# %% [markdown] tags=["skip"]
# Below $n = \alpha\beta$, where the dotted and the dashed line cross, most of the time is latency, and many small all-reduces cost more than
# one large one. Where points leave the curve, the model is too simple: MPI changes its algorithm with the size, and large arrays do not fit
# into the processor's caches. If other programs keep your cores busy, single points are much too high. The fit hardly follows them, because
# relative to the measured time such an error is never more than 1. Change `number` to 2 or 8 and run the three cells again. Which of the two
# numbers changes more?

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `torch.distributed.all_reduce(tensor, op=ReduceOp.MIN)`, which works in place, `all_gather_into_tensor`,
#   `reduce_scatter_tensor` and `new_group` (`torch/distributed/distributed_c10d.py`). All ranks must call `new_group`, members or not.
# - JAX: `jax.lax.psum`, `pmin`, `all_gather` and `psum_scatter` (`jax/_src/lax/parallel.py`) over a named axis of the mesh. They return the
#   result; the compiler puts them into the program that all devices run.
# - DeepSpeed: `deepspeed.comm` (`deepspeed/comm/comm.py`) has PyTorch's names, and can log times and bandwidths of all calls.
# - Measured with [nccl-tests](https://github.com/NVIDIA/nccl-tests): its "algorithm bandwidth" is $n / T(n)$; its "bus bandwidth" is that
#   times $2\frac{p-1}{p}$ for an all-reduce of $p$ ranks, so that it can be compared with the speed of a link.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. Eight ranks hold the same model, and each has its own gradient. Which of the four operations would you use to give all of them the mean
#    gradient, and what would you divide by?
# 2. In an all-reduce, *each rank* sends nearly twice the size of the array, whether 8 or 800 ranks take part. Why does it not send more
#    when there are more ranks?
# 3. You have 50 gradients of 4 kB each. How much faster is one all-reduce of 200 kB than 50 small ones, with your two numbers?

# %% Stop the ranks tags=["given"]
ranks.stop()
