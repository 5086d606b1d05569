"""The NCCL transport where there is a GPU: 8 ranks, which may share one; see `nccl_on_gpus`."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("cupy") is not None and shutil.which("nvidia-smi"):

    def test_what_nccl_gives_is_what_mpi_gives():
        start = [Path(sys.prefix, "bin", "mpiexec"), "-n", "8", sys.executable, Path(__file__).with_name("nccl_on_gpus.py")]
        done = subprocess.run(start, capture_output=True, text=True)
        assert done.returncode == 0 and "FAILED" not in done.stdout, done.stdout + done.stderr
