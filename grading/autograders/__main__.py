"""``python -m grading.autograders gradescope`` (or ``autolab``): grade one submission, where the archive is unpacked."""

import sys
from pathlib import Path

from grading.autograders import autolab, gradescope
from grading.autograders.runner import PartManifest

if __name__ == "__main__":
    platform = {"gradescope": gradescope, "autolab": autolab}[sys.argv[1]]
    platform.main(PartManifest.read(Path(__file__).resolve().parents[2]))
