"""Helpers of the tests under Slurm: a kernel's process, and searches for running processes."""

import os
import subprocess
import sys

import psutil

OPTIONS = "--nodes=2 --time=10 --overcommit"
SETUP = """
import ctypes, os, signal, time
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()
rank = comm.Get_rank()
"""
PROGRAM = """
import sys, time
from course_lib import cluster
print("asks", flush=True)
ranks = cluster.start(4, slurm={options!r})
print("up", flush=True)
{then}
"""


def errors(found):
    return [reply["error"] and f"{reply['error']['name']}: {reply['error']['message']}" for _, reply in found]


def of_course(slurm):
    return [job for job in slurm.ask("squeue", "-h", "-o", "%j").split() if job.startswith("course-")]


def processes_of(slurm, words):
    """The course's processes with these words, of jobs of this Slurm."""
    found = [p for p in psutil.process_iter() if words in " ".join(line_of(p))]
    return [p for p in found if environment_of(p).get("SLURM_CONF") == slurm.environment["SLURM_CONF"]]


def environment_of(process):
    try:
        return process.environ()
    except psutil.Error:
        return {}


def line_of(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def program(slurm, then="time.sleep(120)", options=OPTIONS):
    """A kernel's process of its own."""
    words = [sys.executable, "-c", PROGRAM.format(options=options, then=then)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **slurm.environment}, start_new_session=True)
