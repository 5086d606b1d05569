"""Each benchmark runs, once and without a verdict."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHES
from benchmarks.turns import MOST_TURNS_ENV

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_a_benchmark_runs(name):
    command = [sys.executable, "-m", "benchmarks", name]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ | {MOST_TURNS_ENV: "1"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = [line for line in ran.stdout.splitlines() if "left out" not in line]  # without torch, some figures are
    assert ran.stdout and all(re.fullmatch(r"bench: \S+ \S+ \[\S+\] target <=\S+ (ok|SHORT)", line) for line in lines), ran.stdout
