"""Command line of perceptron training: ``python -m course_lib.training``."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
import traceback
from pathlib import Path

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from course_lib import datasets, students, traffic, zero
from course_lib.collectives import Communicator, DeadlockError
from course_lib.collectives.deadlock.board import open_board
from course_lib.collectives.instrumentation.recording import recorded_to
from course_lib.collectives.snapshot import RAISED
from course_lib.training import Config, TrainingConfigError, TrainingRun
from course_lib.utils import wording


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    default = Config()
    parser = argparse.ArgumentParser(prog="python -m course_lib.training", description="Train the perceptron on a grid of ranks.")
    parser.add_argument("--mp-size", type=int, default=1, help="ranks in a model parallel group")
    parser.add_argument("--dp-size", type=int, help="ranks in a data parallel group (1)")
    parser.add_argument("--megatron-mp", action="store_true", help="Megatron's style of model parallelism instead of the naive one")
    parser.add_argument("--data", choices=datasets.DATASET_NAMES, default=default.data)
    parser.add_argument("--epochs", type=int, default=default.epochs)
    parser.add_argument("--batch-size", type=int, default=default.batch_size, help="samples per step, over all ranks")
    parser.add_argument("--lr", type=float, help="learning rate (0.15, or 0.003 for Adam)")
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default=default.optimizer)
    parser.add_argument("--zero", type=int, choices=zero.STAGES, help="stage of ZeRO, with Adam; --dp-size then defaults to all ranks")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="record what each rank does, as a file for https://ui.perfetto.dev")
    parser.add_argument("--functions", type=Path, default=Path("my_work"), help="folder with your func_impl.py and its companion files")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Train, and print a summary on rank 0.

    Returns
    -------
    int
        0; 2 for an invalid command; 1 if a function raised.
    """
    comm = Communicator()
    first = comm.Get_rank() == 0
    try:
        config, functions, trace = _prepare(comm, first, argv)
        with threadpool_limits(1):  # ranks share the cores
            _train(config, functions, comm, first, trace)
    except SystemExit as ended:
        return ended.code
    except (TrainingConfigError, datasets.DataError, students.MissingFunction) as error:
        if first:
            print(f"course_lib.training: {error}", file=sys.stderr)
        return 2
    except DeadlockError as error:
        return _print_error(comm, str(error))
    except Exception as error:
        open_board().end(RAISED, f"{type(error).__name__}: {error}")  # so that ranks waiting for this one stop
        return _print_error(comm, traceback.format_exc())
    return 0


def _prepare(comm: Communicator, first: bool, argv: list[str] | None) -> tuple:
    """Return the configuration, the student's functions, and the file for a trace, or None."""
    with contextlib.nullcontext() if first else contextlib.redirect_stderr(io.StringIO()):
        a = parse_args(argv)
    try:
        dp_size = a.dp_size if a.dp_size is not None else 1 if a.zero is None else comm.Get_size()
        config = Config(a.mp_size, dp_size, a.megatron_mp, a.data, a.epochs, a.batch_size, a.lr, optimizer=a.optimizer, zero=a.zero or 0)
        functions = students.load(a.functions)
    except ImportError as error:
        raise TrainingConfigError(error) from None
    if comm.Get_size() != config.ranks:
        raise TrainingConfigError(
            f"--mp-size {a.mp_size} and --dp-size {dp_size} need {config.ranks} ranks, but mpiexec started {comm.Get_size()}: "
            f"use mpiexec -n {config.ranks}."
        )
    return config, functions, a.trace


def _print_error(comm: Communicator, text: str) -> int:
    print("\n".join(f"rank {comm.Get_rank()}: {line}" for line in text.strip().splitlines()), file=sys.stderr, flush=True)
    return 1


def _train(config: Config, functions: object, comm: Communicator, first: bool, trace: Path | None) -> None:
    run = TrainingRun(config, functions, comm)
    losses, began = [], time.perf_counter()
    with tqdm(total=run.total, unit="step", disable=not first, mininterval=0.5, ascii=True) as bar, recorded_to(trace, comm, config.name):
        while len(losses) < run.total:
            losses += run.steps(-(-run.total // 50))
            bar.update(len(losses) - bar.n)
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    seconds = time.perf_counter() - began
    accuracy, held, moved = run.accuracy(), run.memory(turns=1), run.moved()
    if not first:
        return
    print(f"{config.name}, {config.data}: {run.total} steps in {seconds:.2f} s, loss {losses[0]:.3f} to {losses[-1]:.3f}")
    print(f"test accuracy {accuracy:.4f}")
    for operation, ranks, calls, payload in moved:
        sent = wording.size(traffic.wire_bytes(operation, len(ranks), payload))
        print(f"rank 0 sent per step: {operation} among {wording.ranks(ranks)}, {calls:g} calls, {sent}")
    parts = ", ".join(f"{wording.size(n)} {kind}" for kind, n in held.items() if n and kind != "true peak")
    print(f"peak memory of rank 0: {parts} (measured by tracemalloc: {wording.size(held['true peak'])})")


if __name__ == "__main__":
    sys.exit(main())
