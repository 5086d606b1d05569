"""Imports that the processes beside the notebook do without: they would take a good part of each start."""

import sys
from types import ModuleType


def leave_out(*modules: str) -> None:
    """Import ipyparallel without its launchers (0.1 s), and without the modules that are named.

    Parameters
    ----------
    *modules : str
        Modules that others import if they are there, and can do without.
    """
    launchers = sys.modules["ipyparallel.cluster"] = ModuleType("ipyparallel.cluster")
    launchers.Cluster = launchers.ClusterManager = None
    for name in modules:
        sys.modules[name] = None
