# ---
# jupyter:
#   course:
#     ranks: 8
# ---

# %% [markdown] tags=["slide"]
# # 10 Unified training
#
# **You will see** your own functions train a model on real images: with data parallelism, with tensor parallelism (another name for the
# model parallelism of parts 02 to 06), and with both at once.
#
# *Nothing to grade. About 30 minutes.*

# %% Start the ranks tags=["given"]
from dataclasses import asdict

import numpy as np

from course_lib import cluster, plots, students
from course_lib.utils import progress
from course_lib.mesh import Mesh
from course_lib.training import Config

ranks = cluster.start(8)

# %% Set up the ranks tags=["given", "skip"]
# %%px
from course_lib import students, training
from course_lib.collectives import Communicator

comm = Communicator()
rank = comm.Get_rank()
run = None


def prepare(config):
    """Create this rank's part of a run; ranks outside the grid do nothing."""
    global run
    config = training.Config(**config)
    part = comm.Split(color=int(rank >= config.ranks), key=rank)
    run = training.TrainingRun(config, students.load("."), part) if rank < config.ranks else None
    return run.total if run else 0


def steps(count):
    """Train for `count` steps and return the losses."""
    return run.steps(count) if run else []


def finish():
    """Return the test accuracy, the bytes this rank sent per step, and its peak memory."""
    return (run.accuracy(), run.moved(), run.memory()) if run else None


# %% [markdown] tags=["slide-50"]
# ## Your functions
#
# Notebooks 01 to 07 saved your functions next to this one, in `func_impl.py` and `data_parallel_preprocess.py`. The next cell lists the
# ones that are still missing. (Lecturers: `python -m grading.authoring.reference my_work` writes the solutions there.)

# %% Look for the functions tags=["given"]
functions = students.load(".")
todo = students.missing(functions)
for notebook, names in todo.items():
    print(f"Not there yet: {', '.join(names)}. Finish {notebook} and run its last cells.")
for notebook, names in students.not_passed(functions).items():
    print(f"Checks not passed yet: {', '.join(names)}. See {notebook}.")
if not todo:
    print("All eleven functions are there.")

# %% [markdown] tags=["slide"]
# ## A run
#
# This is the grid for the run below. Each row holds one copy of the model, split among its ranks. The ranks in a column hold the same part
# of the model and average its gradients.

# %% Draw the grid tags=["folded"]
mesh = Mesh(dp=4, mp=2)
plots.groups(mesh, "mp_size=2, dp_size=4")

# %% [markdown]
# The model is a perceptron: 64 pixels, 256 hidden units with ReLU, 10 classes. One epoch on the handwritten digits takes 60 steps, each
# with 24 images across all ranks. With `fashion-mnist` or `mnist` instead of `digits`, an image has 784 pixels and an epoch takes 2,500
# steps.

# %% How a run goes tags=["given"]
results = {}


def train(**sizes):
    """Train on one grid and keep the results under its name."""
    config = Config(data=DATA, **sizes)  # raises an error if the sizes do not fit
    total, losses = ranks.call("prepare", {"config": asdict(config)})[0], []
    with progress.bar(total, config.name) as bar:
        while len(losses) < total:
            losses += ranks.call("steps", {"count": -(-total // 40)})[0]
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
            bar.update(len(losses) - bar.n)
    accuracy, moved, held = ranks.call("finish")[0]
    print(f"{config.name}: test accuracy {accuracy:.3f} after {config.epochs} epoch{'s' if config.epochs > 1 else ''}")
    results[config.name] = dict(config=config, losses=losses, accuracy=accuracy, moved=moved, held=held)


# %% Train tags=["slide"]
DATA = "digits"  # or "fashion-mnist", "mnist"
train(mp_size=2, dp_size=4, megatron=True)

# %% Draw the loss tags=["folded", "slide"]
students.have_run(results)
last = results[list(results)[-1]]
plots.losses({"": last["losses"]}, f"{last['config'].name} on {DATA}: test accuracy {last['accuracy']:.3f}")

# %% [markdown]
# Try other data or other sizes in the cell above that calls `train`: `mp_size` 1, 2, 4 or 8 in Megatron style, 1 or 2 in naive style; `dp_size` 1, 2, 4
# or 8; at most 8 ranks in total. You can also try `lr=0.05`, `epochs=3` or `batch_size=96`. What do you expect the loss to do when you
# change only the grid?

# %% [markdown] tags=["slide-50"]
# ## Every configuration
#
# Now do the same training run on one, two, four and eight ranks, in both styles.

# %% Train on every grid tags=["folded"]
results.clear()
train(mp_size=1, dp_size=1)
train(mp_size=1, dp_size=2)
for mp_size, dp_size in ((2, 1), (2, 2)):
    train(mp_size=mp_size, dp_size=dp_size)
    train(mp_size=mp_size, dp_size=dp_size, megatron=True)
train(mp_size=4, dp_size=2, megatron=True)

# %% Draw the losses tags=["folded", "slide"]
students.have_run(results, "mp 1, dp 1")
curves = {name: r["losses"] for name, r in results.items()}
apart = np.max(np.ptp(list(curves.values()), axis=0))
plots.losses(
    curves, "The loss on every grid: " + (f"one line, drawn {len(curves)} times" if apart < 1e-3 else "these should all be one line")
)

# %% [markdown]
# Every grid starts from the same weights and sees the same batches, so they all compute the same thing, up to rounding. How large are the
# differences?

# %% Compare with one rank tags=["folded"]
students.have_run(results, "mp 1, dp 1")
one = np.array(results["mp 1, dp 1"]["losses"])
for name, r in results.items():
    print(
        f"{name:<24} accuracy {r['accuracy']:.4f}   largest relative difference in the loss {np.max(np.abs(r['losses'] - one) / one):.1e}"
    )

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# This is what rank 0 sent in one step, by operation and group. Compare the two styles, then the two groups. Which part grows with the
# batch, and which with the model?

# %% Draw the traffic tags=["folded"]
meshes = [Mesh(dp=r["config"].dp_size, mp=r["config"].mp_size) for r in results.values()]


def group(bar, members):
    return "mp group" if tuple(members) in meshes[bar].groups("mp") else "dp group"


plots.traffic([r["moved"] for r in results.values()], f"Bytes rank 0 sent per step, {DATA}", list(results), group)

# %% [markdown] tags=["slide-50"]
# And this is what rank 0 held at its peak. Next to the total for the arrays is what Python's own `tracemalloc` measured.

# %% Draw the memory tags=["folded"]
plots.memory({name: r["held"] for name, r in results.items()}, f"Peak memory of rank 0, {DATA}")

# %% [markdown] tags=["slide"]
# Data parallelism keeps all the parameters on every rank, and adds a buffer for the gradients that arrive. Tensor parallelism splits both.
# Part 08 also shards the parameters and gradients across the data parallel group.
#
# You can run the same training from a shell, in the course folder (after `source .venv/bin/activate`):
#
# ```
# mpiexec -n 4 python -m course_lib.training --mp-size 2 --dp-size 2 --megatron-mp --data fashion-mnist
# ```

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "mp"))` (`torch/distributed/device_mesh.py`) makes this grid: the last
#   axis has neighboring ranks. `torchrun --nproc-per-node 8 train.py` starts the ranks, as `mpiexec` does here.
# - Megatron-LM: `initialize_model_parallel(tensor_model_parallel_size=2)` in `megatron/core/parallel_state.py`. It names the axes the other
#   way round: in its `order="tp-cp-ep-dp-pp"`, the first one has neighboring ranks.
# - DeepSpeed: `PipeModelDataParallelTopology` in `deepspeed/runtime/pipe/topology.py`; there, too, the last axis has neighboring ranks.
# - JAX: `jax.make_mesh((4, 2), ("dp", "mp"))`. You say how each array is sharded over it, and the compiler adds the collectives.
#
# </details>

# %% [markdown]
# ## Questions worth arguing about
#
# 1. You have 8 ranks on 2 machines with a slow cable between them. Which grid would you use, and which ranks would you put on which
#    machine?
# 2. Double the batch size. Which bars in the two pictures change, and by how much? Guess first, then try it.
# 3. Try Megatron with `mp_size=8` and `dp_size=1`: it moves few bytes. Why would you still not train this model that way?

# %% Stop the ranks tags=["given"]
ranks.stop()
