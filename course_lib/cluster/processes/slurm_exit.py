"""Explain how a Slurm job ended, from srun's log."""

from __future__ import annotations

import re
import sys

from course_lib.engine.processes.slurm import CONTROLLER_ENDED
from course_lib.utils import wording

REASONS = (
    (r"DUE TO TIME LIMIT", "The allocation's time has run out. Ask for more, such as --time=2:00:00."),
    (r"DUE TO NODE FAILURE|Node failure on (?P<nodes>\S+)", "A machine of the allocation has failed{nodes}."),
    (r"DUE TO PREEMPTION", "Another job has taken the machines: this one was preempted."),
    (r"oom.kill|Out Of Memory", "Memory ran out: ask for more, such as --mem=16G, or run fewer ranks per machine."),
)
CANCELLED = re.compile(r"CANCELLED AT|Force Terminated|Job allocation \d+ has been revoked|forcing job termination", re.IGNORECASE)
TASK = re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)")
FIRST_TASK_EXITED = re.compile(
    r"srun: First task exited[^\n]*\n(?:srun: StepId=[^\n]*\n)*?srun: StepId=\S+ tasks? (?P<tasks>[\d,-]+): exited"
)
NOISE = re.compile(r"^srun: |^slurmstepd\S*: (?!error: execve)|\[IPController\]|\[Controller\]|\[Engine")
NOT_THERE = f"Python did not start there: do all machines see {sys.prefix}? Or is there a word in slurm=... that belongs to no option?"


def reason(log: str) -> str | None:
    """Return why Slurm itself has ended the job; None if the log does not say."""
    for pattern, sentence in REASONS:
        if found := re.search(pattern, log):
            nodes = found.groupdict().get("nodes")
            return sentence.format(nodes=f": {nodes}" if nodes else "")
    return None


def exit_message(log: str, machines: dict[int, str], code: int) -> str:
    """Describe in a sentence or two how a job ended.

    Parameters
    ----------
    log : str
        The last lines written by srun and the ranks.
    machines : dict of int to str
        The machine of each rank that had started.
    code : int
        srun's exit code.
    """
    if why := reason(log):
        failed = re.search(REASONS[1][0], log)
        lost = [rank for rank, machine in machines.items() if failed and failed["nodes"] and machine in expand_hostlist(failed["nodes"])]
        return f"{why[:-1]}, and {wording.ranks(lost)} went with it." if lost else why
    cancelled, first, task = CANCELLED.search(log), FIRST_TASK_EXITED.search(log), TASK.search(log)
    ends = [found.start() for found in (first, task) if found]
    if cancelled and cancelled.start() < min(ends, default=len(log)):  # otherwise, the job was cancelled because a rank had ended
        return "It was cancelled, with scancel or by the cluster."
    others = "".join(f"\n{line}" for line in [line for line in log.strip().splitlines() if not NOISE.search(line)][-4:])
    if (task or not code) and not machines:
        return f"{NOT_THERE}{others}"
    if first:
        ended = expand_task_list(first["tasks"])
        where = ", ".join(sorted({machines[r] for r in ended if r in machines}))
        return f"The process of {wording.ranks(ended)} on {where} ended before the others. Usual cause: os._exit in a function."
    if task and task["how"].strip().endswith(f"exit code {CONTROLLER_ENDED}"):
        cause = "It was killed, or memory ran out, or its last output says why:"
        return f"The process that passes cells on to the ranks has ended. {cause}{others}"
    if task:
        how = task["how"].strip()
        return (
            f"The process of {wording.ranks(expand_task_list(task['tasks']))} on {task['node']} ended: {how[0].lower()}{how[1:]}.{others}"
        )
    return log


def expand_task_list(tasks: str) -> list[int]:
    """Return the ranks in a task list of srun.

    >>> expand_task_list("0-2,5")
    [0, 1, 2, 5]
    """
    spans = [part.partition("-") for part in tasks.split(",")]
    return [rank for first, _, last in spans for rank in range(int(first), int(last or first) + 1)]


def expand_hostlist(names: str) -> list[str]:
    """Return the machines in a host list of Slurm.

    >>> expand_hostlist("n[08-10,12],gpu1")
    ['n08', 'n09', 'n10', 'n12', 'gpu1']
    """
    found = []
    for before, inside in re.findall(r"([^,\[\]]+)(?:\[([\d,-]+)\])?", names):
        for span in inside.split(",") if inside else [""]:
            first, _, last = span.partition("-")
            numbers = range(int(first), int(last or first) + 1) if first else [""]
            found += [f"{before}{str(number).zfill(len(first))}" for number in numbers]
    return found
