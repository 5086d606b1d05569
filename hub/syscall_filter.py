"""System calls denied to a student's server: new namespaces, and interfaces of the kernel for which a course has no use.

A user namespace makes anybody root inside it, and most escapes from a sandbox begin there.
"""

from __future__ import annotations

import errno

from course_lib.sandbox import seccomp
from course_lib.sandbox.seccomp import ALLOW, Filter, errno_action, greater_than, masked_equal

DENIED = """
    unshare setns add_key request_key keyctl bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register fanotify_init
"""
FAMILIES = (1, 2, 10, 16)  # of sockets: Unix, IPv4, IPv6, netlink; others, such as those between virtual machines, ignore namespaces
NAMESPACES = (7, 17, 25, 26, 27, 28, 29, 30)  # the bits CLONE_NEW...: time, mounts, cgroups, UTS, IPC, users, processes, network


def student_filter(machine: int | None = None) -> Filter:
    """Build the filter for a student's server.

    Raises
    ------
    RuntimeError
        libseccomp, which compiles it, is missing.
    """
    if problem := seccomp.problem():
        raise RuntimeError(f"isolating the students' servers needs a system call filter: {problem}.")
    rules, refused = Filter(ALLOW, machine), errno_action(errno.EPERM)
    rules.add(refused, DENIED.split())
    rules.add(errno_action(errno.ENOSYS), ["clone3"])  # its flags cannot be inspected; the C library then falls back to clone
    for bit in NAMESPACES:
        rules.add(refused, ["clone"], masked_equal(0, 1 << bit, 1 << bit))
    rules.add(refused, ["socket"], greater_than(0, max(FAMILIES)))
    for family in set(range(max(FAMILIES))) - {*FAMILIES}:
        rules.add(refused, ["socket"], masked_equal(0, 0xFFFFFFFF, family))
    return rules
