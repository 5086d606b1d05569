"""nbgrader's configuration: `cd grading && nbgrader autograde 01_data_split` uses it as it is."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grading.config import configure

c = get_config()  # noqa: F821  nbgrader defines it
configure(c)
