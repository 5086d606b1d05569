"""Landlock (Linux): restrict the files that an isolated rank can access, for good, on machines without bubblewrap.

Needs no privileges, and works in containers (kernel documentation, userspace-api/landlock.rst). Without it, nothing is restricted.
"""

from __future__ import annotations

import ctypes
import os
import struct

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system call numbers, the same on all architectures
_ASK_VERSION, _BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_READ = 0b1101  # execute a file, read a file, list a folder
_FILE = 0b1100_0000_0000_0111  # the rights that apply to files rather than folders
# By ABI version: the rights that it can restrict on files, on the network, and on signals and abstract sockets.
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK, _SCOPES = {1: 0, 4: 0b11}, {1: 0, 6: 0b11}


def restrict_files(read: list[str], write: list[str]) -> bool:
    """Restrict this thread, and all threads and processes that it will start, to the given files and folders.

    Parameters
    ----------
    read : list of str
        Files and folders to read and execute; those that do not exist are ignored.
    write : list of str
        Folders with full access, and devices.

    Returns
    -------
    bool
        False if the kernel has no Landlock, and nothing is restricted.

    Raises
    ------
    OSError
        The kernel refuses the restriction.
    """
    libc, version = ctypes.CDLL(None, use_errno=True), abi_version()
    if not version:
        return False
    files, network, scopes = (_newest(table, version) for table in (_FILES, _NETWORK, _SCOPES))
    # Earlier versions of the ABI have a shorter struct.
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
    """Return the kernel's Landlock ABI version; 0 if it has none."""
    try:
        return _call(ctypes.CDLL(None, use_errno=True), _CREATE, None, 0, _ASK_VERSION)
    except (OSError, AttributeError):
        return 0


def _allow(libc: ctypes.CDLL, rules: int, path: str, allowed: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = allowed if os.path.isdir(path) else allowed & _FILE
        _call(libc, _ADD, ctypes.c_int(rules), _BENEATH, struct.pack("=Qi", allowed, descriptor), 0)
    finally:
        os.close(descriptor)


def _newest(table: dict[int, int], version: int) -> int:
    return table[max(v for v in table if v <= version)]


def _call(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    done = libc.syscall(ctypes.c_long(number), *words)
    if done < 0:
        raise OSError(ctypes.get_errno(), "a rank's files cannot be limited")
    return done
