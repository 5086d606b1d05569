"""This machine: the name by which the others of a cluster know it, the address at which they reach it, and its load."""

from __future__ import annotations

import os
import socket

REMOTE_NOTEBOOK_ENV = "COURSE_AWAY"  # set for ranks whose notebook may be on another machine, though they are all on one
ADDRESS_ENV = "COURSE_ADDRESS"  # an address of this machine, or the name of its network, such as ib0, where it has several


def name() -> str:
    """The machine's name: Slurm's for it inside a job, else its own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def notebook_may_be_remote() -> bool:
    """Whether the notebook may be on another machine than its ranks."""
    return bool(os.environ.get(REMOTE_NOTEBOOK_ENV))


def processes_per_core() -> float:
    """Number of processes that want each core, on average over the last minute: at least 1, and at most 3, as ranks that wait spin."""
    return min(3.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def address() -> str:
    """An IPv4 address at which other machines reach this one.

    Returns
    -------
    str
        What COURSE_ADDRESS says; else what the machine's own name stands for; else that of its first network.

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
            raise ValueError(f"{ADDRESS_ENV}={wanted!r}: expected an IPv4 address of {name()}, or one of its networks, which are {known}.")
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
    """The networks that are up: name and IPv4 addresses."""
    import psutil  # here: most ranks never ask

    up = psutil.net_if_stats()
    addresses = {net: [a.address for a in found if a.family == socket.AF_INET] for net, found in psutil.net_if_addrs().items()}
    return {net: found for net, found in addresses.items() if found and net in up and up[net].isup}
