"""Checkpoints: 100 MB from 4 ranks against one `numpy.save` of as much; and a training run whose ranks are killed at random moments.

Part 27's solution. Both write to the same disk in turn. The run: 60 steps with a checkpoint every 3; a random rank gets signal 9 at a
random moment, 20 times, and 2 to 4 ranks resume. Its losses must be those of an undisturbed run, to 1e-6.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from benchmarks import mpi
from benchmarks.turns import turns
from course_lib.engine.processes.mpiexec import LAUNCHERS, THREAD_VARIABLES, find_mpiexec

NBYTES = 100 << 20
TURNS = turns(7)
STEPS, KILLS = 60, 20


def measure(folder: str, disk: str) -> None:
    """Save on each of 4 ranks, and on rank 0 alone with numpy.save; rank 0 prints the ratios."""
    import numpy as np

    from course_lib import students
    from course_lib.collectives import Communicator

    comm, save = Communicator(), students.get(students.load(folder), "save")
    rank, n = comm.Get_rank(), comm.Get_size()
    part, whole = np.ones(NBYTES // 8 // n), np.ones(NBYTES // 8 if rank == 0 else 0)
    path, found = os.path.join(disk, "checkpoint"), []
    for step in range(1, TURNS + 2):
        if rank == 0:
            shutil.rmtree(path, ignore_errors=True)
            os.mkdir(path)
        ours = mpi.seconds(lambda step=step: save(path, step, {"all": part}, comm))
        plain = mpi.seconds(lambda: np.save(os.path.join(disk, "plain.npy"), whole) if rank == 0 else None)
        found.append(ours / plain)
        if rank == 0:
            os.remove(os.path.join(disk, "plain.npy"))
    if rank == 0:
        print(json.dumps(found[1:]))


def train(folder: str, place: str, pause: float) -> None:
    """Resume from the checkpoint on each rank, and run to the end; rank 0 notes losses, each rank its process."""
    from course_lib import students
    from course_lib.collectives import Communicator
    from course_lib.gpt.model.decoder import Sizes
    from course_lib.gpt.run import ResumableRun

    functions, comm = students.load(folder), Communicator()
    run = ResumableRun(comm, Sizes(vocabulary=16, width=16, heads=2, depth=2, length=8))
    if os.path.exists(os.path.join(place, "index.json")):
        run.restore(*functions.load(place, comm))
    with open(f"{place}.{comm.Get_rank()}.pid", "w") as file:
        file.write(str(os.getpid()))
    while run.step < STEPS:
        step, loss = run.step, run.train_step()
        time.sleep(pause)
        if comm.Get_rank() == 0:
            with open(f"{place}.txt", "a") as file:
                print(step, repr(loss), file=file)
        if run.step % 3 == 0:
            functions.save(place, run.step, run.parts, comm)


def _start(ranks: int, folder: str, place: str, pause: float) -> subprocess.Popen:
    mpiexec = find_mpiexec()
    command = [mpiexec, *LAUNCHERS[os.path.basename(mpiexec)], "-n", str(ranks), sys.executable, "-m", __name__, folder, place, str(pause)]
    return subprocess.Popen(
        command, env={**os.environ, **THREAD_VARIABLES}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _end(process: subprocess.Popen) -> None:
    """Wait for a run to end; one that does not is ended with all its ranks."""
    try:
        process.wait(300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _losses(place: str) -> dict[int, float]:
    with open(f"{place}.txt") as file:
        return {int(step): float(loss) for step, loss in (line.split() for line in file if line.endswith("\n"))}


def killed(folder: str, place: str, seed: int, kills: int = KILLS) -> tuple[int, float]:
    """Return how often the run was killed, and the largest difference of a loss."""
    draw, done = random.Random(seed), 0
    for name in ("whole", "killed"):
        os.mkdir(os.path.join(place, name))
    whole, broken = os.path.join(place, "whole"), os.path.join(place, "killed")
    _end(_start(4, folder, whole, 0.0))
    while done <= kills:
        ranks = draw.randint(2, 4)
        for name in os.listdir(place):
            if name.endswith(".pid"):
                os.remove(os.path.join(place, name))
        process = _start(ranks, folder, broken, 0.1 if done < kills else 0.0)
        pids = [f"{broken}.{r}.pid" for r in range(ranks)]
        while process.poll() is None and not all(os.path.exists(pid) and os.path.getsize(pid) for pid in pids):
            time.sleep(0.01)
        if done < kills:
            time.sleep(draw.uniform(0.0, 0.5))
            with open(draw.choice(pids)) as file:
                os.kill(int(file.read()), signal.SIGKILL)
        _end(process)  # mpiexec's message about a killed rank depends on the mpiexec; what the ranks have noted is enough
        done += 1
    want, got = _losses(whole), _losses(broken)
    if len(want) < STEPS or len(got) < STEPS:
        raise RuntimeError(f"a run did not finish: {len(want)} steps undisturbed and {len(got)} after {kills} kills, of {STEPS}")
    return kills, max(abs(want[step] - got[step]) for step in range(STEPS))


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as disk:
        reference.write(folder)
        yield "checkpoint-100-MB-4-ranks/numpy.save", mpi.run(4, __name__, folder, disk), 0.9


def crashes() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    seed = int.from_bytes(os.urandom(4))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as place:
        reference.write(folder)
        done, apart = killed(folder, place, seed)
    yield f"training-killed-{done}-times-losses-apart-seed-{seed}", [apart], 1e-6


if __name__ == "__main__":
    measure(*sys.argv[1:3]) if len(sys.argv) == 3 else train(sys.argv[1], sys.argv[2], float(sys.argv[3]))
