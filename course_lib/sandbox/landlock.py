"""Files that a rank isolated does not need, taken from it for good, also where there is no bubblewrap: Linux's Landlock.

Needs no rights, and works in containers (kernel documentation, userspace-api/landlock.rst). Where the kernel has none, nothing is taken.
"""

from __future__ import annotations

import ctypes
import os
import struct

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same on all processors
_ASK_VERSION, _BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_READ = 0b1101  # run a file, read a file, list a folder
_FILE = 0b1100_0000_0000_0111  # what can be allowed for a file that is no folder
# By version of the interface: what it can take of the file system, of the network, and of signals and sockets without a name.
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK, _SCOPES = {1: 0, 4: 0b11}, {1: 0, 6: 0b11}


def restrict_files(read: list[str], write: list[str]) -> bool:
    """Let this thread, and all that it will ever start, reach these files and folders and no others; whether that is known here.

    Parameters
    ----------
    read : list of str
        Files and folders to read; those that are not there are left out.
    write : list of str
        Folders to do anything in, and devices to write to.

    Raises
    ------
    OSError
        The system refuses.
    """
    libc, version = ctypes.CDLL(None, use_errno=True), abi_version()
    if not version:
        return False
    files, network, scopes = (_newest(table, version) for table in (_FILES, _NETWORK, _SCOPES))
    # The first versions know the first words only.
    words = struct.pack("QQQ", files, network, scopes)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = _call(libc, _CREATE, words, len(words), 0)
    try:
        for paths, allowed in ((read, _READ), (write, files)):
            for path in filter(os.path.exists, paths):
                _allow(libc, rules, path, allowed & files)
        if libc.prctl(*map(ctypes.c_ulong, (_NO_NEW_PRIVS, 1, 0, 0, 0))):
            raise OSError(ctypes.get_errno(), "a rank's files cannot be limited")
        _call(libc, _RESTRICT, ctypes.c_int(rules), 0)
    finally:
        os.close(rules)
    return True


def abi_version() -> int:
    """The version of the kernel's Landlock; 0 where there is none."""
    try:
        return _call(ctypes.CDLL(None, use_errno=True), _CREATE, None, 0, _ASK_VERSION)
    except (OSError, AttributeError):
        return 0


def _allow(libc: ctypes.CDLL, rules: int, path: str, allowed: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = allowed if os.path.isdir(path) else allowed & _FILE
        _call(libc, _ADD, ctypes.c_int(rules), _BENEATH, struct.pack("=Qi", allowed, place), 0)
    finally:
        os.close(place)


def _newest(table: dict[int, int], version: int) -> int:
    return table[max(v for v in table if v <= version)]


def _call(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    done = libc.syscall(ctypes.c_long(number), *words)
    if done < 0:
        raise OSError(ctypes.get_errno(), "a rank's files cannot be limited")
    return done
