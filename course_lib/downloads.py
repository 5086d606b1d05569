"""Files from the network: each is fetched once on a machine, and is there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def cache(name: str) -> Path:
    """The folder in which a data set's files are kept."""
    import pooch  # late: it takes a tenth of a second

    return Path(pooch.os_cache("distributed-training-course")) / name


def once(folder: Path, there: Callable[[], object], fetch: Callable[[], object]) -> object:
    """What is there, or what one process has fetched while the others that need it waited.

    Parameters
    ----------
    folder : Path
        Where the files are to be; made if it does not exist.
    there : callable
        Gives what is there, or None.
    fetch : callable
        Fetches it.
    """
    found = there()
    if found:
        return found
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        return there() or fetch()


def retrieve(url: str, md5: str, name: str, folder: Path) -> Path:
    """A file by its address, with this checksum; put into the folder when it is whole."""
    import pooch

    return Path(pooch.retrieve(url, f"md5:{md5}", name, os.fspath(folder)))
