"""Settings of the JupyterLab that `make lab` opens."""

import warnings

from course_lib.tools import index

warnings.filterwarnings("ignore", "Overriding existing post_save_hook")  # Jupyter reads this for each of its applications
c.FileContentsManager.post_save_hook = index.saved  # noqa: F821
