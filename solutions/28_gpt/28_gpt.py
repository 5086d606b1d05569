# ---
# jupyter:
#   course:
#     ranks: 8
# ---

# %% [markdown] tags=["slide"]
# # 28 A GPT on every axis
#
# **You will see** a small GPT learn to write, on 8 ranks: data, pipeline, context, tensor and expert parallel. All communication in its
# layers is the code that you wrote in parts 21 to 26. Only one exchange is given: the mean of the gradients (as in parts 07 and 13).
#
# *Nothing to grade. About 45 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots, students
from course_lib.utils import progress
from course_lib.gpt import text
from course_lib.gpt.model.build_model import required_functions
from course_lib.gpt.settings import Settings

ranks = cluster.start(8)

# %% Set up the ranks tags=["given", "skip"]
# %%px
from course_lib import students, traffic
from course_lib.collectives import Communicator
from course_lib.gpt.training import step_costs
from course_lib.gpt import generate, text
from course_lib.gpt.settings import Settings
from course_lib.gpt.training.trainer import Trainer

comm = Communicator()
rank = comm.Get_rank()
trainer = None


def prepare(settings):
    """Set up this rank's part of a run; ranks beyond the grid take no part."""
    global trainer
    settings = Settings(**settings)
    inside = rank < settings.mesh.size
    group, trainer = comm.Split(color=int(not inside), key=rank), None
    if inside:
        trainer = Trainer(settings, students.load("."), group, text.load_and_broadcast(group)[0])


def steps(count):
    """Train for some steps; return the losses so far, and the bytes sent."""
    if trainer:
        traffic.reset()
        for _ in range(count):
            trainer.train_step()
        return trainer.losses, step_costs.bytes_by_axis(trainer, count)


def write(begin, count):
    """Return what the model writes; only rank 0 has it."""
    return generate.generate(trainer, begin, count) if trainer else ""


def held():
    """This rank's memory, by kind."""
    return step_costs.memory_by_kind(trainer) if trainer else {}


# %% [markdown] tags=["slide-50"]
# ## Your functions
#
# Notebooks 21 to 26 saved them next to this one, in `transformer_impl.py`. The second cell tells you which ones are still missing for the
# grids of the first. You can change the grids. (Lecturers: `python -m grading.authoring.reference my_work` writes the solutions there.)

# %% Choose the grids
grids = [
    dict(dp=2, pp=2, tp=2),
    dict(),  # one rank
    dict(dp=8, fsdp=True),
    dict(dp=4, tp=2, sequence=True),
    dict(dp=2, pp=4, schedule="gpipe"),
    dict(dp=2, cp=2, tp=2),
    dict(dp=2, pp=2, tp=2, sequence=True, fsdp=True),
]
mixtures = [  # with experts, it is another model
    dict(experts=4, capacity=4.0),
    dict(dp=4, tp=2, experts=4, capacity=4.0),
]

# %% Look for the functions tags=["given"]
wanted = {name for sizes in grids + mixtures for name in required_functions(Settings(**sizes))}
functions, lacks = students.load("."), False
for notebook, names in students.missing(functions, ("transformer_impl.py",)).items():
    names = sorted(wanted & set(names))
    if names:
        lacks = True
        print(f"Not there yet: {', '.join(names)}. Finish {notebook} and run its last cells.")
if not lacks:
    print("All of them are there.")
for notebook, names in students.not_passed(functions).items():
    print(f"Checks not passed yet: {', '.join(names)}. See {notebook}.")

# %% [markdown] tags=["slide"]
# ## Text, and a grid
#
# The model reads the source code of Python's standard library. Each byte is a token, so there are 256 different ones. In each step, the
# ranks see 16 texts of 128 bytes, and for each byte they guess the next one.

# %% Look at the text tags=["slide-50"]
words, name = text.load_text()
print(f"{name}: {len(words):,} bytes. An excerpt:\n")
print(words[200_000:200_300].tobytes().decode())

# %% Draw the grid tags=["folded", "slide"]
grid = Settings(**grids[0])
plots.groups(grid.mesh, grid.name)

# %% [markdown] tags=["slide-50"]
# There are two copies of the model (dp), each split into two stages of two blocks (pp), and in each block, two ranks share the heads and
# columns (tp). Which of your functions works along which axis?
#
# | axis | forward and backward | after backward |
# |---|---|---|
# | tp | `copy_to_group`, `reduce_from_group`, `vocab_parallel_cross_entropy`; with `sequence=True`: `gather_sequence`, `scatter_sequence` | `reduce_norm_gradients` with `sequence=True` |
# | cp | `zigzag`, `ring_attention` | |
# | pp | `one_forward_one_backward_step`, or `gpipe_step` | |
# | dp and cp | with `experts=4`: `route`, `dispatch`, `combine`; with `fsdp=True`: `FullyShardedDataParallel` | otherwise the mean of all gradients, in one all-reduce (given) |
# | all | | `clip_gradients`, once for each group over which gradients are sharded |

# %% How a run goes tags=["given"]
results = {}


def train(**sizes):
    """Train on a grid; return the losses, and what each rank sent."""
    settings = Settings(**sizes).on(ranks.n)  # says so if the sizes do not fit
    ranks.call("prepare", {"settings": sizes})
    losses = []
    with progress.bar(settings.steps, settings.name) as bar:
        while len(losses) < settings.steps:
            found = ranks.call("steps", {"count": min(5, settings.steps - len(losses))})
            losses = found[0][0]
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
            bar.update(len(losses) - bar.n)
    moved = [reply[1] for reply in found if reply]
    seconds = bar.format_dict["elapsed"]
    rate = settings.steps * settings.batch * settings.length / seconds
    print(f"{settings.name}: loss {losses[-1]:.3f}, {rate:,.0f} tokens a second")
    return dict(losses=losses, moved=moved)


# %% [markdown] tags=["slide"]
# ## Before and after
#
# The model has 1.3 million parameters. What will it write before it has learnt anything? And after 80 steps, which take less than half a
# minute?

# %% Train, and write tags=["slide"]
train(steps=1, **grids[0])
print(ranks.call("write", {"begin": "def ", "count": 120})[0])
results[grid.name] = train(steps=80, **grids[0])
print(ranks.call("write", {"begin": "def ", "count": 240})[0])

# %% Draw the loss tags=["folded", "slide"]
students.have_run(results)
plots.losses({"": results[grid.name]["losses"]}, f"Training loss, {grid.name}")

# %% [markdown]
# By now it has seen 160,000 bytes: it knows what Python looks like, but hardly a word of it. From a shell (see below), you can give it an
# hour.

# %% [markdown] tags=["slide-50"]
# ## Every grid
#
# Now the same first steps on other grids, with other functions of yours. The weights and the texts are the same. What do you expect the losses
# to look like? With experts, it is another model, so it has a line of its own. (With four experts and capacity 4, no token is dropped.)

# %% Train on other grids
students.have_run(results)
steps, results = 5, {grid.name: results[grid.name]}
for sizes in grids[1:] + mixtures:
    results[Settings(**sizes).name] = train(steps=steps, **sizes)

# %% Draw the losses tags=["folded", "slide"]
students.have_run(results)
shared = min(len(found["losses"]) for found in results.values())  # steps that all runs have taken
curves = {name: found["losses"][:shared] for name, found in results.items()}
kinds = [[curve for name, curve in curves.items() if ("experts" in name) == experts] for experts in (False, True)]
apart = max(np.max(np.ptp(same, axis=0)) for same in kinds if same)
verdict = "one line for each model" if apart < 1e-3 else "there should be one line for each model"
plots.losses(curves, f"The loss on {len(curves)} grids, at most {apart:.0e} apart: {verdict}")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Here is what rank 0 sends in one step, by axis. How much each axis sends depends on the grid: which bars grow with the batch, which with
# the length of a text, and which with the model? Guess first, then change the numbers in the second cell.

# %% Draw the bytes tags=["folded", "slide"]
students.have_run(results)
plots.stacked(
    {name: found["moved"][0] for name, found in results.items() if sum(found["moved"][0].values())},
    "Bytes that rank 0 sends in a step, by axis",
)

# %% Change the sizes tags=["slide-50"]
students.have_run(results)
sizes, rank = dict(dp=2, cp=2, tp=2), 0
changes = {
    "as above": dict(),
    "batch 32": dict(batch=32),
    "length 256, batch 8": dict(length=256, batch=8),
    "width 320": dict(width=320),
}
runs = {name: train(steps=1, **sizes, **more) for name, more in changes.items()}
sent = {name: found["moved"][rank] for name, found in runs.items()}
plots.stacked(sent, f"Bytes that rank {rank} sends in a step, {Settings(**sizes).name}")

# %% [markdown] tags=["slide-50"]
# When does a rank send, and when does it wait? Here is one step on the first grid. Find an exchange of each axis. Which ones can a rank not
# hide behind its own work?

# %% A step on the first grid tags=["folded"]
students.have_run(results)
train(steps=2, **grids[0])
with ranks.trace(f"A step, {grid.name}"):
    ranks.call("steps", {"count": 1})

# %% [markdown] tags=["slide-50"]
# And here is the memory of each rank on a grid of your choice. Why do the ranks of the two stages differ? What changes without `fsdp`?

# %% Draw the memory tags=["folded", "slide"]
students.have_run(results)
sizes = dict(dp=2, pp=2, tp=2, sequence=True, fsdp=True)
train(steps=1, **sizes)
memory = {f"rank {r}": kinds for r, kinds in enumerate(ranks.call("held")) if kinds}
plots.memory(memory, f"Memory of each rank in a step: {Settings(**sizes).name}")

# %% [markdown] tags=["slide"]
# ## From a shell
#
# You can do the same in the course folder (after `source .venv/bin/activate`), with checkpoints and a report as a web page:
#
# ```
# mpiexec -n 8 python -m course_lib.gpt --tp 2 --pp 2 --dp 2 --steps 2000
# ```
#
# `--cp 2`, `--sequence`, `--fsdp` and `--experts 4` switch on what their names say, `--text` takes a folder of your own, and `--help`
# explains the rest. Stop it with Ctrl-C, or kill it, and continue with `--resume`, on the same grid or on any other: that takes your `save`
# and `load` from part 27.

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - Megatron-LM: `initialize_model_parallel` in `megatron/core/parallel_state.py`, with the order `tp-cp-ep-dp-pp`: tp is innermost, as here,
#   but stages are outermost. It adds the cp ranks to dp to reduce gradients, as we do.
# - `get_grad_norm_fp32` in `megatron/core/optimizer/clip_grads.py` does the work of `clip_gradients` in one all-reduce: parameters that are
#   replicated over tp are counted on one rank only.
# - PyTorch: torchtitan's `ParallelDims` builds the `DeviceMesh`. Parameters are fully sharded over its dimension `dp_shard_cp`, dp and cp
#   together, as here. A context parallel rank has a chunk of the first half and its partner, as in `zigzag` (`_HeadTailLoadBalancer`).
# - There, experts may be sharded over a part of dp and cp, so that there are copies of each; here they take all of both.
#
# </details>

# %% [markdown]
# ## Questions worth arguing about
#
# 1. You have 8 nodes with 8 GPUs each, with fast links inside a node and slow ones between nodes. Which axis goes where?
# 2. With capacity 1.25 (the default), the losses of two grids with experts are no longer equal. Why? Take `capacity=4.0` out of `mixtures`
#    and try.
# 3. The model gets ten times as wide. Which bars in the pictures grow by a factor of ten, and which by a hundred?
# 4. Take one text instead of ten, and make it ten times as long. What grows then, and which axis helps?

# %% Stop the ranks tags=["given"]
ranks.stop()
