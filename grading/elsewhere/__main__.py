"""``python -m grading.elsewhere gradescope`` (or ``autolab``): grade one hand-in, where the archive is unpacked."""

import sys
from pathlib import Path

from grading.elsewhere import autolab, gradescope
from grading.elsewhere.handin import Part

if __name__ == "__main__":
    platform = {"gradescope": gradescope, "autolab": autolab}[sys.argv[1]]
    platform.main(Part.read(Path(__file__).resolve().parents[2]))
