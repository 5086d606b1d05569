# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 27 Checkpoints, and resuming after a crash
#
# **You will build** `save` and `load`: each rank writes its part of a training run to disk, and any number of ranks can resume from there.
#
# *{points} points. About 50 minutes.*

# %% Start the ranks tags=["given"]
import os
import tempfile

import numpy as np

from course_lib import cluster, plots, saving
from course_lib.check.checkpoint.check import CheckpointCheck
from course_lib.cluster import RanksGone

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import json
import os
import signal

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from course_lib.collectives import Communicator
from course_lib.gpt.model import Sizes
from course_lib.gpt.run import ResumableRun

everyone = Communicator()
rank = everyone.Get_rank()
sizes = Sizes(vocabulary=16, width=16, heads=2, depth=2, length=8)

# %% [markdown] tags=["slide"]
# A run on thousands of devices fails every few hours: Llama 3's, on 16,384 GPUs, was interrupted 466 times in 54 days (Grattafiori et al.,
# 2024, "The Llama 3 herd of models", section 3.3.4), 419 times unexpectedly. Whatever is not on disk by then is lost. A **checkpoint** has
# everything the run needs to continue *as if nothing had happened*: the parameters, both of Adam's moments, and the step number, which also
# determines the texts that come next.
#
# `ResumableRun` trains a small GPT. As in ZeRO's first stage ([part 09](09_zero3_adam.ipynb)), every rank has all the parameters, and one
# part of what Adam updates: `run.parts`.

# %% Look at the parts tags=["slide"]
# %%px
run = ResumableRun(everyone, sizes)
losses = [run.train_step() for _ in range(3)]
print({name: part.size for name, part in run.parts.items()})

# %% [markdown] tags=["slide-50"]
# ## A worked example: half a file
#
# Saving takes time, and a crash can come in the middle of it. The cell writes a list of numbers, and "crashes" before it is done. What is
# left of the old list? The second time, it first writes to a file with another name. `os.replace` then renames the file in a single step:
# anyone who looks sees either the old file or the new one.


# %% Crash while writing tags=["slide-50"]
# %%px --targets 0
def write(path, numbers, crash):
    with open(path, "w") as file:
        for i, number in enumerate(numbers):
            if i == crash:
                return  # as if the process had died
            print(number, file=file)


write("list.txt", [1, 2, 3, 4], None)
write("list.txt", [5, 6, 7, 8], 2)
print("written in place:      ", open("list.txt").read().split())
write("list.txt", [1, 2, 3, 4], None)
write("list.new", [5, 6, 7, 8], 2)
print("new file, then a crash:", open("list.txt").read().split())
write("list.new", [5, 6, 7, 8], None)
os.replace("list.new", "list.txt")
print("new file, then renamed:", open("list.txt").read().split())
os.remove("list.txt")

# %% [markdown] tags=["slide-50"]
# ## Your turn: save
#
# A checkpoint has one file per rank, and an **index** that says which files belong together. It is the index that makes them a checkpoint:
# while it lists the old files, the new ones count for nothing. So when may you replace it, and when may you remove the old files?
#
# `save_file(arrays, path)` writes a dict of arrays in the safetensors format: a few lines of JSON that say what is where, followed by the
# numbers. `json.dump(value, file)` writes numbers, lists and dicts as text.


# %% Exercise: save tags=["exercise", "slide-50"]
# %%px
def save(folder, step, shards, comm):
    """Write a checkpoint; all ranks call this function.

    Whenever a rank dies, the disk must have either the previous checkpoint or this one.
    When the function returns on any rank, the folder has only the files of this one.

    Parameters
    ----------
    folder : str
        It exists. It may have an earlier checkpoint, from any number of ranks, and
        whatever an interrupted save has left behind.
    step : int
        Larger than that of any earlier checkpoint.
    shards : dict of str to numpy.ndarray
        This rank's parts, each ``(length,)`` and C-contiguous; a length may be 0. In
        rank order, they make up the whole. The names are the same on all ranks.
    comm : Communicator
        n ranks. Rank r writes its parts to ``f"{step}-{r}.safetensors"``. `index.json`
        is ``{"step": step, "ranks": n, "lengths": {name: [length on rank 0, ...]}}``.
        Send at most 1,000 bytes, in at most 16 calls.
    """
    ### BEGIN SOLUTION
    n, rank = comm.Get_size(), comm.Get_rank()
    save_file(shards, os.path.join(folder, f"{step}-{rank}.safetensors"))
    mine = np.array([len(part) for part in shards.values()], np.int64)
    lengths = np.empty((n, len(mine)), np.int64)
    comm.Allgather(mine, lengths)  # when it returns, all ranks have written
    if rank == 0:
        lengths = dict(zip(shards, lengths.T.tolist(), strict=True))
        new = os.path.join(folder, "index.new")
        with open(new, "w") as file:
            json.dump({"step": step, "ranks": n, "lengths": lengths}, file)
        os.replace(new, os.path.join(folder, "index.json"))
    comm.Barrier()
    keep = {"index.json", *(f"{step}-{r}.safetensors" for r in range(n))}
    for name in os.listdir(folder):
        if rank == 0 and name not in keep:
            os.remove(os.path.join(folder, name))
    comm.Barrier()
    ### END SOLUTION


# %% Check save tags=["given"]
CheckpointCheck("save", ranks).save(2).full().passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: load
#
# There may be more or fewer ranks now than when the checkpoint was saved. The whole is split anew: with
# $c = \lceil \text{length} / n \rceil$, rank r of n gets the numbers from $r c$ to $(r + 1) c$. The index tells you which file has which of
# them. Open only those that you need: the whole may be too large for one rank, and files that the index does not list belong to no
# checkpoint. `with safe_open(path, "numpy") as file` opens a file that `save_file` has written, and `file.get_slice(name)[first:last]`
# reads numbers from one array.


# %% Exercise: load tags=["exercise", "slide-50"]
# %%px
def load(folder, comm):
    """Read a checkpoint that was saved by any number of ranks.

    Parameters
    ----------
    folder : str
        Its files stay as they are.
    comm : Communicator
        n ranks. Send at most 1,000 bytes, in at most 16 calls.

    Returns
    -------
    step : int
    shards : dict of str to numpy.ndarray
        This rank's parts, with the dtype that was saved; an empty one may have any
        dtype. Opens only files that have something for this rank.

    Raises
    ------
    FileNotFoundError, ValueError
        The index or a file is missing or damaged; the message gives its name.
    """
    ### BEGIN SOLUTION
    n, rank = comm.Get_size(), comm.Get_rank()
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            index = json.load(file)
        found, step = {}, index["step"]
        for name, lengths in index["lengths"].items():
            each = -(-sum(lengths) // n)
            begin, parts = 0, []
            for r, length in enumerate(lengths):
                first = max(rank * each - begin, 0)
                last = min((rank + 1) * each - begin, length)
                if first < last:
                    path = os.path.join(folder, f"{step}-{r}.safetensors")
                    with safe_open(path, "numpy") as file:
                        parts.append(file.get_slice(name)[first:last])
                begin += length
            found[name] = np.concatenate(parts) if parts else np.empty(0)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged, or not a checkpoint: {error}") from error
    return step, found
    ### END SOLUTION


# %% Check load tags=["given"]
CheckpointCheck("load", ranks).load(4, 4).load(2, 4).load(3, 2).load(4, 1).damaged().passed()

# %% [markdown] tags=["slide"]
# ## A rank is killed
#
# Sixty steps on four ranks, with a checkpoint every ten steps. In step 37, rank 2 is killed with signal 9, which no process can catch. Then
# three ranks continue. How many steps are computed twice? Change the numbers, and try again.


# %% Train from the last checkpoint on tags=["given", "slide-50"]
# %%px
def train(folder, until, every, killed_at=None):
    """Train from the checkpoint in the folder, if any; rank 0 records the losses."""
    run = ResumableRun(everyone, sizes)
    if os.path.exists(os.path.join(folder, "index.json")):
        run.restore(*load(folder, everyone))
    while run.step < until:
        if run.step == killed_at and rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        step, loss = run.step, run.train_step()
        if rank == 0:
            with open(f"{folder}.txt", "a") as file:
                print(step, loss, file=file)
        if run.step % every == 0:
            save(folder, run.step, run.parts, everyone)


# %% Kill, and go on tags=["folded", "slide-50"]
steps, every, killed_at, survivors = 60, 10, 37, 3  # survivors must divide 12 texts


def losses_of(name, killed_at=None):
    """Train; return each step's loss, as last recorded."""
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as place:  # next to the notebook, where ranks on other machines see it
        folder = os.path.join(place, name)
        os.mkdir(folder)
        run = dict(folder=folder, until=steps, every=every)
        try:
            ranks.call("train", run | dict(killed_at=killed_at))
        except RanksGone as gone:
            print(gone)
            ranks.restart(rerun=True, n=survivors)
            ranks.call("train", run)
            ranks.restart(rerun=True, n=4)
        noted = np.loadtxt(f"{folder}.txt")
    print(f"{name}: {len(noted) - steps} steps were computed twice")
    return [noted[noted[:, 0] == step][-1, 1] for step in range(steps)]


curves = {}
if ranks.share_a_disk:
    curves = {"undisturbed": losses_of("undisturbed"), "killed": losses_of("killed", killed_at)}

# %% Draw the losses tags=["folded", "slide"]
picture = None
if curves:
    apart = np.max(np.abs(np.subtract(*curves.values())))
    title = f"Training loss, with one rank killed in step {killed_at}: at most {apart:.0e} apart"
    picture = plots.losses(curves, title)
picture

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `torch.distributed.checkpoint.save` and `load` (Distributed Checkpoint). `FileSystemWriter` writes a file per rank, by default
#   with `os.fsync`, and its index is `.metadata`. On load, each rank reads the slices that it needs, on any grid. `async_save` copies the
#   state first, and writes it while the training continues.
# - It writes `.metadata.tmp` and renames it, but removes an old `.metadata` before that: use a new folder for each checkpoint.
# - JAX: Orbax' `CheckpointManager`. It writes to a temporary folder, and then renames the folder (`AtomicRenameTemporaryPath`).
# - Megatron-LM: `megatron/core/dist_checkpointing`. A `ShardedTensor` says where a part lies in the whole, with shape and offset.
# - DeepSpeed: one file per rank, and a second program, `deepspeed/checkpoint/ds_to_universal.py`, makes them independent of the grid.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. The computer loses power during `save`. What could be wrong on disk, even though every file was written before the index? (Look
#    up `os.fsync`.)
# 2. How often would you save if it takes a minute and a run fails twice a day?
#
# The last cells save your functions to `transformer_impl.py`, for part 28, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
saving.save(ranks, "save", "load")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They slow down one rank after another, check the disk at every point in time, fill it, and
# kill a rank midway. The ranks may then be on several computers: each has a folder of its own, in which it sees only its own files, and
# everything they have written is put together.

# %% Test: a whole checkpoint at every moment tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = CheckpointCheck("save", ranks, show=False).save(4).save(3).save(2).ends()
### END HIDDEN TESTS

# %% Test: a full disk tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = CheckpointCheck("a full disk", ranks, show=False).full()
### END HIDDEN TESTS

# %% Test: load on other ranks tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = CheckpointCheck("load", ranks, show=False)
for size, old in ((4, 4), (2, 4), (3, 2), (4, 3), (3, 17), (1, 4), (4, 1)):
    check.load(size, old)
### END HIDDEN TESTS

# %% Test: damaged files tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = CheckpointCheck("damaged files", ranks, show=False).damaged()
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
