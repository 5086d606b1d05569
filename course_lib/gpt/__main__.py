"""Command line of GPT training: ``python -m course_lib.gpt``."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
import traceback
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from course_lib import students, traffic
from course_lib.collectives import Communicator, DeadlockError
from course_lib.collectives.deadlock.board import open_board
from course_lib.collectives.instrumentation.recording import recorded_to
from course_lib.collectives.snapshot import RAISED
from course_lib.gpt import generate, report
from course_lib.gpt.functions import FUNCTIONS_DIR, load_functions
from course_lib.gpt.serving import command
from course_lib.gpt.settings import Settings, SettingsError
from course_lib.gpt.text import TextError, check_length, load_and_broadcast
from course_lib.gpt.training import full_state, step_costs
from course_lib.gpt.training.run_directory import CheckpointWriteError, RunDirectory, checkpoint_status
from course_lib.gpt.training.trainer import Diverged, Trainer


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    d = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m course_lib.gpt", description="Train a small GPT on a grid of ranks; `serve` as the first word serves it."
    )
    parser.add_argument("--dp", type=int, help="data parallel ranks (default: all ranks, divided by pp, cp and tp)")
    parser.add_argument("--pp", type=int, default=d.pp, help="pipeline parallel ranks")
    parser.add_argument("--cp", type=int, default=d.cp, help="context parallel ranks, which split each text in zigzag order")
    parser.add_argument("--tp", type=int, default=d.tp, help="tensor parallel ranks")
    parser.add_argument("--sequence", action="store_true", help="sequence parallelism over the tensor parallel ranks")
    parser.add_argument(
        "--experts", type=int, default=d.experts, help="experts in each block, sharded over the data and context parallel ranks"
    )
    parser.add_argument("--fsdp", action="store_true", help="fully sharded data parallel")
    parser.add_argument("--schedule", choices=("1f1b", "gpipe"), default=d.schedule, help="pipeline schedule (1f1b)")
    parser.add_argument("--text", type=Path, help="folder or file to train on (the source code of Python's standard library)")
    for name in ("width", "heads", "depth", "length", "batch", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(d, name), help=f"({getattr(d, name)})")
    parser.add_argument("--micro-batches", type=int, help="micro-batches per data parallel rank and step")
    parser.add_argument("--lr", type=float, default=d.lr, help=f"learning rate ({d.lr})")
    parser.add_argument("--clip", type=float, default=d.clip, help=f"largest norm of the gradients ({d.clip})")
    parser.add_argument("--functions", type=Path, default=FUNCTIONS_DIR, help="folder with your transformer_impl.py (my_work)")
    parser.add_argument("--out", type=Path, default=Path("gpt_run"), help="folder for checkpoints and the report (gpt_run)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="record what each rank does, as a file for https://ui.perfetto.dev")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints (50)")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint, on any grid")
    parser.add_argument("--begin", default="def ", help="prompt of the generated samples")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Train, and print a summary on rank 0.

    Returns
    -------
    int
        0; 2 for an invalid command; 1 if a function raised; 130 if interrupted.
    """
    comm = Communicator()
    first = comm.Get_rank() == 0
    words = sys.argv[1:] if argv is None else argv
    parse, run = (command.parse_args, command.run) if words[:1] == ["serve"] else (parse_args, _run)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a model may generate text that the terminal cannot show
            stream.reconfigure(errors="replace")
    try:
        with contextlib.ExitStack() as stack:
            if not first:  # only rank 0 prints usage errors and the help text
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            a = parse(words[1:] if run is command.run else words)
    except SystemExit as ended:
        return ended.code
    try:
        with threadpool_limits(1):  # ranks share the cores
            run(a, comm, first)
    except (SettingsError, TextError, students.MissingFunction) as error:
        return _fail_on_rank0(first, str(error), 2)
    except Diverged as error:
        return _fail_on_rank0(first, f"{error} {checkpoint_status(a.out)}", 1)
    except KeyboardInterrupt:
        return _fail_on_rank0(first, f"interrupted. {checkpoint_status(a.out)}", 130)
    except CheckpointWriteError as error:
        return _fail_on_this_rank(
            comm, str(error), f"{error} {checkpoint_status(a.out)} Fix that first; if the disk is full, make room.", 2
        )
    except MemoryError as error:
        return _fail_on_this_rank(
            comm, "MemoryError", f"this rank ran out of memory: {error or 'none is left'}. Choose a smaller model.", 2
        )
    except DeadlockError as error:
        raised = any(view.state == RAISED for view in open_board().snapshot().ranks)
        return 1 if raised else _print_error(comm, str(error), 1)  # that rank prints the error
    except Exception as error:
        return _fail_on_this_rank(comm, f"{type(error).__name__}: {error}", traceback.format_exc(), 1)
    return 0


def _settings(a: argparse.Namespace, comm: Communicator) -> Settings:
    n = comm.Get_size()
    dp = a.dp if a.dp is not None else max(n // max(a.pp * a.cp * a.tp, 1), 1)
    names = ("pp", "cp", "tp", "sequence", "experts", "fsdp", "schedule")
    names += ("width", "heads", "depth", "length", "batch", "steps", "lr", "clip")
    settings = Settings(dp=dp, micro_batches=a.micro_batches, seed=a.seed, **{name: getattr(a, name) for name in names})
    if settings.mesh.size != n:
        context = f" --cp {a.cp}" if a.cp > 1 else ""
        raise SettingsError(
            f"--dp {dp} --pp {a.pp}{context} --tp {a.tp} need {settings.mesh.size} ranks, but mpiexec started {n}: "
            f"use mpiexec -n {settings.mesh.size}."
        )
    if a.every < 1:
        raise SettingsError(f"--every must be at least 1; got {a.every}.")
    return settings


def _run(a: argparse.Namespace, comm: Communicator, first: bool) -> None:
    settings = _settings(a, comm)
    functions = load_functions(a.functions, comm, *["load"] * a.resume)
    lacks = [name for name in ("save", "load") if not callable(getattr(functions, name, None))]
    text, name = load_and_broadcast(comm, a.text)
    check_length(text, settings.length)
    trainer = Trainer(settings, functions, comm, text)
    folder = RunDirectory(a.out, comm, settings, text, name, a.resume)
    if first and lacks:
        print(f"No checkpoints: no {' and no '.join(lacks)} in {a.functions}. Finish 27_checkpoint and run its last code cells.")
    if a.resume:
        folder.load(trainer)
        if first and trainer.step >= settings.steps:
            print(f"Nothing left to do: the checkpoint is of step {trainer.step}, and --steps is {settings.steps}.")
    samples = {f"after {trainer.step} steps": generate.generate(trainer, a.begin)}
    with recorded_to(a.trace, comm, settings.name):
        rate = _train(trainer, None if lacks else folder, a.every, first)
    samples[f"after {trainer.step} steps"] = generate.generate(trainer, a.begin)
    results = _results(trainer, name, rate, samples)
    if first:
        _print_results(results, folder)


def _train(trainer: Trainer, folder: RunDirectory | None, every: int, first: bool) -> float:
    """Train to the end; return tokens per second, excluding the time spent on checkpoints."""
    s, took, begin = trainer.settings, 0.0, trainer.step
    traffic.reset()
    bar = tqdm(total=s.steps, initial=begin, unit="step", disable=not first or begin >= s.steps, mininterval=0.5, ascii=True)
    with bar, np.errstate(over="ignore", invalid="ignore"):  # `Diverged` reports overflow
        while trainer.step < s.steps:
            began = time.perf_counter()
            loss = trainer.train_step()
            took += time.perf_counter() - began
            bar.update()
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            if folder and (trainer.step % every == 0 or trainer.step == s.steps):
                folder.save(trainer)
    done = trainer.step - begin
    return done * s.batch * s.length / took if done else 0.0


def _results(trainer: Trainer, text: str, rate: float, samples: dict[str, str]) -> report.RunResults:
    """Gather the results of all ranks, on each of them."""
    losses = list(trainer.losses)
    traffic.reset()
    held = step_costs.memory_by_kind(trainer)
    moved = step_costs.bytes_by_axis(trainer)
    axes = list(trainer.settings.mesh.shape)
    mine = np.array([moved.get(axis, 0.0) for axis in axes] + [float(value) for value in held.values()])
    every = np.empty((trainer.groups.everyone.Get_size(), len(mine)))
    trainer.groups.everyone.Allgather(mine, every)
    return report.RunResults(
        trainer.settings,
        text,
        full_state.parameter_count(trainer),
        losses,
        rate,
        samples,
        [{axis: value for axis, value in zip(axes, row[: len(axes)], strict=True) if value} for row in every],
        [dict(zip(held, row[len(axes) :].astype(int).tolist(), strict=True)) for row in every],
    )


def _print_results(results: report.RunResults, folder: RunDirectory) -> None:
    path, problem = folder.path / "report.html", ""
    try:
        path.write_text(report.render_html(results), encoding="utf-8")
    except OSError as error:
        problem = f"course_lib.gpt: the report could not be written to {path}: {error.strerror}."
    for name, value in report.summary(results).items():
        print(f"{name:<12} {value}")
    for when, text in results.samples.items():
        print(f"\nSample {when}:\n{text}")
    if problem:
        print(problem, file=sys.stderr)
    else:
        print(f"\nThe report is in {path}.")


def _fail_on_rank0(first: bool, text: str, code: int) -> int:
    """Print an error on rank 0 that all ranks know of; return the exit code."""
    if first:
        print(f"course_lib.gpt: {text}", file=sys.stderr)
    return code


def _fail_on_this_rank(comm: Communicator, short: str, text: str, code: int) -> int:
    open_board().end(RAISED, short)  # so that ranks waiting for this one stop
    return _print_error(comm, text, code)


def _print_error(comm: Communicator, text: str, code: int) -> int:
    print("\n".join(f"rank {comm.Get_rank()}: {line}" for line in text.strip().splitlines()), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
