"""System call filters, compiled by libseccomp for this architecture (seccomp(2), seccomp_rule_add(3)).

Every Debian and Ubuntu has libseccomp, as apt depends on it, and so has Fedora, as systemd does.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterable
from functools import cache

ALLOW, KILL = 0x7FFF0000, 0x80000000
_UNKNOWN = -1  # libseccomp's number of an unknown system call
_FOREIGN, _ALL_THREADS, _OPTIMIZE, _BINARY_TREE = 2, 4, 8, 2  # attributes, and a value
_GREATER, _MASKED_EQUAL = 6, 7


def errno_action(number: int) -> int:
    """Return the action that makes a call fail with this errno; with 0, it does nothing and reports success."""
    return 0x00050000 | number


class Condition(ctypes.Structure):
    """Condition of a rule on a numeric argument (pointers cannot be followed); see `masked_equal` and `greater_than`."""

    _fields_ = [("argument", ctypes.c_uint), ("operator", ctypes.c_int), ("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


def masked_equal(argument: int, bits: int, value: int) -> Condition:
    """Return the condition that ``argument & bits == value``; arguments are numbered from 0."""
    return Condition(argument, _MASKED_EQUAL, bits, value)


def greater_than(argument: int, value: int) -> Condition:
    """Return the condition that an argument is greater than `value`."""
    return Condition(argument, _GREATER, value, 0)


class Filter:
    """Filter of system calls.

    Parameters
    ----------
    default : int
        The action for calls that no rule matches: `ALLOW`, `KILL` or an `errno_action`.
        Calls of a foreign architecture kill the process.
    machine : int, optional
        libseccomp's number of an architecture (``AUDIT_ARCH_...``); by default this machine's.

    Raises
    ------
    OSError
        There is no libseccomp, see `problem`.
    """

    def __init__(self, default: int, machine: int | None = None):
        self._library = _library()
        self._context = ctypes.c_void_p(self._library.seccomp_init(default))
        self._do("seccomp_attr_set", _FOREIGN, KILL)
        self._do("seccomp_attr_set", _ALL_THREADS, 1)
        self._library.seccomp_attr_set(self._context, _OPTIMIZE, _BINARY_TREE)  # from version 2.5 on
        if machine is not None and machine != self._library.seccomp_arch_native():
            self._do("seccomp_arch_add", machine)
            self._do("seccomp_arch_remove", self._library.seccomp_arch_native())

    def __del__(self):
        if getattr(self, "_context", None):
            self._library.seccomp_release(self._context)

    def add(self, action: int, names: Iterable[str], *conditions: Condition) -> None:
        """Add a rule for calls by name, if all conditions hold; names unknown to this architecture or libseccomp are ignored."""
        together = (Condition * len(conditions))(*conditions)
        for name in names:
            number = self._library.seccomp_syscall_resolve_name(name.encode())
            if number != _UNKNOWN:
                self._do("seccomp_rule_add_array", action, number, len(conditions), together)

    def load(self) -> None:
        """Install the filter on this process: on all of its threads, and on everything that they will start.

        Raises
        ------
        OSError
            The kernel refuses it.
        """
        self._do("seccomp_load")

    def program(self) -> bytes:
        """Return the filter as a BPF program, as bubblewrap's ``--seccomp`` takes it."""
        with tempfile.TemporaryFile() as file:
            self._do("seccomp_export_bpf", file.fileno())
            file.seek(0)
            return file.read()

    def _do(self, function: str, *arguments: object) -> None:
        if failed := getattr(self._library, function)(self._context, *arguments):
            raise OSError(-failed, f"system calls cannot be limited: {function}: {os.strerror(-failed)}")


@cache
def problem() -> str | None:
    """Return the reason why system calls cannot be filtered on this machine, or None if they can."""
    if sys.platform != "linux":
        return "seccomp is for Linux"
    try:
        _library()
    except OSError:
        return "there is no libseccomp here (apt install libseccomp2)"
    return None


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libseccomp.so.2")
    context, number = ctypes.c_void_p, ctypes.c_uint32
    library.seccomp_init.restype, library.seccomp_init.argtypes = context, [number]
    library.seccomp_arch_native.restype, library.seccomp_release.restype = number, None
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_rule_add_array.argtypes = [context, number, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Condition)]
    library.seccomp_attr_set.argtypes = [context, ctypes.c_int, number]
    for name in ("arch_add", "arch_remove"):
        getattr(library, f"seccomp_{name}").argtypes = [context, number]
    library.seccomp_export_bpf.argtypes = [context, ctypes.c_int]
    for name in ("load", "release"):
        getattr(library, f"seccomp_{name}").argtypes = [context]
    return library
