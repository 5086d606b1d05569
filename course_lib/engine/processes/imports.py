"""Skip imports that ranks and the controller do not need, and that would take a considerable part of their start-up time."""

import sys
from types import ModuleType


def leave_out(*modules: str) -> None:
    """Make later imports skip ipyparallel's launchers (0.1 s), and the given modules.

    Parameters
    ----------
    *modules : str
        Modules that their importers treat as optional.
    """
    launchers = sys.modules["ipyparallel.cluster"] = ModuleType("ipyparallel.cluster")
    launchers.Cluster = launchers.ClusterManager = None
    for name in modules:
        sys.modules[name] = None
