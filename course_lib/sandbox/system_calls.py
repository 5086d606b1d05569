"""System calls that an isolated rank may make: those needed by NumPy, matplotlib, BLAS threads, asyncio and the rank's socket.

The list comes from tracing all parts of the course (strace), plus harmless calls on a program's own files, clock and memory. All others are
refused, including those of future kernels, for two reasons. A rank's memory is measured by its process (`resource_usage`), which would miss
data in socket buffers, pipes, anonymous files or other processes. And ranks may read the same files or share a user id: file locks, or
resources counted per user, would be covert channels between them.
"""

from __future__ import annotations

import errno
import os

from course_lib.sandbox import seccomp
from course_lib.sandbox.seccomp import ALLOW, Filter, errno_action, masked_equal

FILE_CALLS = """
    access chdir close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fchdir fdatasync fgetxattr flistxattr fstat
    fsync ftruncate getcwd getdents getdents64 getxattr lgetxattr link linkat listxattr llistxattr lseek lstat mkdir mkdirat newfstatat
    open openat pread64 preadv pwrite64 pwritev read readlink readlinkat readv rename renameat renameat2 rmdir sendfile stat statx symlink
    symlinkat umask unlink unlinkat write writev
"""
MEMORY_CALLS = "brk get_mempolicy mbind mprotect mremap msync munmap"
THREAD_CALLS = """
    exit exit_group get_robust_list getcpu gettid membarrier restart_syscall rseq sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getparam sched_getscheduler sched_yield set_robust_list set_tid_address
"""
EVENT_CALLS = """
    epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 poll ppoll pselect6 select
    getpeername getsockname getsockopt recvfrom sendto shutdown
"""  # including the calls on an existing socket
SIGNAL_CALLS = """
    alarm getitimer pause rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait setitimer sigaltstack
"""
INFO_CALLS = """
    capget getegid geteuid getgid getgroups getpgrp getpid getppid getrandom getresgid getresuid getrlimit getrusage getuid gettimeofday
    nanosleep setrlimit time times uname
"""
ALLOWED = " ".join((FILE_CALLS, MEMORY_CALLS, THREAD_CALLS, EVENT_CALLS, SIGNAL_CALLS, INFO_CALLS)).split()
# These do nothing but report success: copying a file, for example, needs them, and Landlock does not restrict them.
IGNORED = ["chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "futimesat", "utimensat"]

_INT, _SHARED, _PRIVATE, _OF_A_PROCESS = 0xFFFFFFFF, 1, 128, 0x80000000
_THREAD, _NAMESPACES = 0x10F00, 0x7E020080  # clone flags: VM, FS, FILES, SIGHAND, THREAD; and those for new namespaces
_DESCRIPTORS = (0, 1, 2, 3, 4, 1030)  # allowed for fcntl: duplicate, and get or set flags; no locks, owners, leases or pipe sizes
_TERMINALS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
# Allowed for madvise: NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, FREE, HUGEPAGE, NOHUGEPAGE. COLD and PAGEOUT would move memory to
# swap, where its peak is not measured, and MERGEABLE would share equal pages with other ranks.
_ADVICE = (0, 1, 2, 3, 4, 8, 14, 15)
_OF_THREADS = (15, 16)  # allowed for prctl: PR_SET_NAME, PR_GET_NAME


def rank_filter(pid: int, machine: int | None = None) -> Filter:
    """Build the filter for a rank with this process id; `machine` as for `Filter`."""
    rules = Filter(errno_action(errno.EPERM), machine)
    rules.add(ALLOW, ALLOWED)
    rules.add(errno_action(0), IGNORED)
    rules.add(errno_action(errno.ENOSYS), ["clone3"])  # its flags are behind a pointer; the C library falls back to clone
    # Threads may be started, which share everything with this one, but neither processes nor a second table of open files.
    rules.add(ALLOW, ["clone"], masked_equal(0, _THREAD | _NAMESPACES, _THREAD))
    # A non-private futex in a file's page would be shared with other ranks. EAGAIN, as the C library aborts on any other error.
    rules.add(ALLOW, ["futex"], masked_equal(1, _PRIVATE, _PRIVATE))
    rules.add(errno_action(errno.EAGAIN), ["futex"], masked_equal(1, _PRIVATE, 0))
    # Shared memory may exist without being counted for the process that created it.
    rules.add(ALLOW, ["mmap"], masked_equal(3, _SHARED, 0))
    for name, argument, values in (
        ("fcntl", 1, _DESCRIPTORS),
        ("ioctl", 1, _TERMINALS),
        ("madvise", 2, _ADVICE),
        ("prctl", 0, _OF_THREADS),
    ):
        for value in values:
            rules.add(ALLOW, [name], masked_equal(argument, _INT, value))
    rules.add(ALLOW, ["tgkill"], masked_equal(0, _INT, pid))
    rules.add(ALLOW, ["prlimit64"], masked_equal(0, _INT, 0))
    for name in ("clock_gettime", "clock_getres", "clock_nanosleep"):  # not the CPU clocks of other processes
        rules.add(ALLOW, [name], masked_equal(0, _OF_A_PROCESS, 0))
    return rules


def install_filter() -> bool:
    """Install the filter on this process, for good.

    Returns
    -------
    bool
        False if system calls cannot be filtered on this machine, see `seccomp.problem`.

    Raises
    ------
    OSError
        The kernel refuses the filter.
    """
    if seccomp.problem():
        return False
    rank_filter(os.getpid()).load()
    return True
