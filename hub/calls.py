"""System calls that a student's server is not let do: new namespaces, and doors of the kernel that a course has no use for.

A namespace for users would make anybody root inside of it, and most of the ways out of a sandbox begin there.
"""

from __future__ import annotations

import errno
import platform
import struct

# Numbers on x86-64 and on 64-bit ARM.
DENIED = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
}
SOCKET, FAMILIES = (41, 198), (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink
CLONE = (56, 220)
CLONE3 = 435
NAMESPACES = 0x7E020080  # the flags CLONE_NEW...: user, processes, network, mounts, messages, names, groups, time
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def without_namespaces() -> bytes:
    """The program for the kernel (seccomp(2)), as bubblewrap takes it with ``--seccomp``.

    Raises
    ------
    RuntimeError
        The numbers of this processor's system calls are not known here.
    """
    if platform.machine() not in MACHINES:
        raise RuntimeError(f"the hub's walls know the processors {' and '.join(MACHINES)}; this is {platform.machine()}.")
    column, arch = MACHINES[platform.machine()]
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    program += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]  # a second set of numbers, on x86-64
    program += [(_EQUAL, 0, 1, CLONE3), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]  # its flags cannot be read; the C library then takes clone
    for numbers in DENIED.values():
        program += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    # Sockets of other families, such as those between virtual machines, belong to no network namespace.
    program += [(_EQUAL, 0, len(FAMILIES) + 3, SOCKET[column]), (_LOAD, 0, 0, 16)]
    program += [(_EQUAL, len(FAMILIES) - i, 0, family) for i, family in enumerate(FAMILIES)]
    program += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    program += [(_EQUAL, 0, 3, CLONE[column]), (_LOAD, 0, 0, 16), (_BITS, 0, 1, NAMESPACES), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    program += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *line) for line in program)
