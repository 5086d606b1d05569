"""Host: the machine's name within a cluster, an address at which others reach it, and its load."""

from __future__ import annotations

import os
import socket

REMOTE_NOTEBOOK_ENV = "COURSE_AWAY"  # set for ranks whose notebook may be on another machine, although they are all on one
ADDRESS_ENV = "COURSE_ADDRESS"  # an address of this machine, or the name of a network interface such as ib0, if it has several


def name() -> str:
    """Name of the machine: Slurm's node name inside a job, otherwise its own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def notebook_may_be_remote() -> bool:
    """Tell whether the notebook may be on another machine than its ranks."""
    return bool(os.environ.get(REMOTE_NOTEBOOK_ENV))


def processes_per_core() -> float:
    """Runnable processes per core, averaged over the last minute: at least 1, and at most 3, as waiting ranks spin."""
    return min(3.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def address() -> str:
    """An IPv4 address at which other machines reach this one.

    Returns
    -------
    str
        The address given by COURSE_ADDRESS; otherwise that of the host name; otherwise that of the first network.

    Raises
    ------
    ValueError
        COURSE_ADDRESS is neither an address nor a network of this machine.
    """
    wanted, networks = os.environ.get(ADDRESS_ENV), _networks()
    if wanted:
        if wanted in networks:
            return networks[wanted][0]
        if not any(wanted in some for some in networks.values()):
            known = ", ".join(f"{net} ({some[0]})" for net, some in networks.items())
            raise ValueError(f"{ADDRESS_ENV}={wanted!r}: expected an IPv4 address of {name()}, or one of its networks: {known}.")
        return wanted
    for own in (name(), socket.gethostname()):
        try:
            found = socket.gethostbyname(own)
        except OSError:
            continue
        if not found.startswith("127."):
            return found
    return next((some[0] for some in networks.values() if not some[0].startswith("127.")), "127.0.0.1")


def _networks() -> dict[str, list[str]]:
    """Names and IPv4 addresses of the networks that are up."""
    import psutil  # imported here, as most ranks never need it

    up = psutil.net_if_stats()
    addresses = {net: [a.address for a in found if a.family == socket.AF_INET] for net, found in psutil.net_if_addrs().items()}
    return {net: found for net, found in addresses.items() if found and net in up and up[net].isup}
