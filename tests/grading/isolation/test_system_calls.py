"""The filters of system calls: what they do is read from the program that the kernel gets, for both processors, call by call."""

import errno
import os
import struct
import subprocess
import sys

import pytest

from course_lib.sandbox import seccomp, system_calls
from grading.submission import sandbox
from hub import syscall_filter

pytestmark = pytest.mark.skipif(seccomp.problem() is not None, reason=f"System calls cannot be limited: {seccomp.problem()}.")

MACHINES = {"x86-64": 0xC000003E, "ARM": 0xC00000B7}
REFUSED, IGNORED, MISSING, PID = 0x50000 | errno.EPERM, 0x50000, 0x50000 | errno.ENOSYS, 4321
HIGH = 1 << 40  # what the kernel does not look at in an argument of 32 bits


def decide(program, number, machine, *arguments):
    """The kernel's decision about a call (its own rules: Linux, net/core/filter.c, for the instructions that there are)."""
    data = struct.pack("iIQ6Q", number, machine, 0, *arguments, *[0] * (6 - len(arguments)))
    lines, at, word = [*struct.iter_unpack("HBBI", program)], 0, 0
    while True:
        code, then, otherwise, value = lines[at]
        at += 1
        if code == 0x06:
            return value
        elif code == 0x20:
            word = struct.unpack_from("I", data, value)[0]
        elif code == 0x54:
            word &= value
        elif code == 0x05:
            at += value
        else:
            true = {0x15: word == value, 0x25: word > value, 0x35: word >= value, 0x45: bool(word & value)}[code]
            at += then if true else otherwise


def numbers(names, machine):
    """The calls' numbers on a processor; those that it does not have are left out."""
    found = (seccomp._library().seccomp_syscall_resolve_name_arch(machine, name.encode()) for name in names)
    return {number for number in found if number >= 0}


@pytest.fixture(params=MACHINES.values(), ids=MACHINES)
def rank(request):
    """A rank's filter: what it does with a call by name, or by number."""
    machine = request.param
    program = system_calls.rank_filter(PID, machine).program()

    def does(call, *arguments):
        if isinstance(call, str):
            (call,) = numbers([call], machine)
        return decide(program, call, machine, *arguments)

    does.machine, does.program = machine, program
    return does


WITH_CONDITIONS = {
    "clone",
    "futex",
    "mmap",
    "fcntl",
    "ioctl",
    "madvise",
    "prctl",
    "tgkill",
    "prlimit64",
    "clock_gettime",
    "clock_getres",
    "clock_nanosleep",
}


def test_what_is_not_on_the_list_is_refused_also_what_no_kernel_has_yet(rank):
    allowed = numbers(system_calls.ALLOWED, rank.machine)
    ignored, special = numbers(system_calls.IGNORED, rank.machine), numbers({*WITH_CONDITIONS, "clone3"}, rank.machine)
    for number in {*range(2000)} - special:
        assert rank(number) == (seccomp.ALLOW if number in allowed else IGNORED if number in ignored else REFUSED), number
    assert rank("clone3") == MISSING
    assert 90 < len(allowed) < 160


def test_both_processors_get_the_same_list():
    known = [numbers([name], machine) for machine in MACHINES.values() for name in system_calls.ALLOWED]
    x86, arm = known[: len(known) // 2], known[len(known) // 2 :]
    only_on_one = {name for name, *both in zip(system_calls.ALLOWED, x86, arm, strict=True) if len([*filter(None, both)]) == 1}
    assert only_on_one == set(YOUNGER.split())


# On ARM, which is younger, the C library makes these with the calls that have come after them.
YOUNGER = """
    access alarm creat dup2 epoll_create epoll_wait eventfd getdents getpgrp link lstat mkdir open pause poll readlink rename rmdir select
    stat symlink time unlink
"""
ESCAPES = """
    fork vfork execve execveat socket socketpair accept accept4 bind connect listen setsockopt sendmsg sendmmsg recvmsg recvmmsg io_setup
    io_submit statfs fstatfs sysinfo timer_create timerfd_create seccomp modify_ldt pipe pipe2 memfd_create memfd_secret shmget shmat msgget
    semget mq_open flock mknod mknodat truncate setxattr fsetxattr preadv2 pwritev2 mincore fadvise64 readahead cachestat splice tee
    vmsplice add_key request_key keyctl inotify_init inotify_init1 fanotify_init ptrace process_vm_readv process_vm_writev kcmp pidfd_open
    pidfd_getfd unshare setns kill tkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal process_madvise process_mrelease migrate_pages
    move_pages setpriority getpriority ioprio_set sched_setaffinity sched_setattr sched_setparam sched_setscheduler chroot mount umount2
    pivot_root open_tree move_mount fsopen fsconfig fsmount mount_setattr name_to_handle_at open_by_handle_at personality bpf
    perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register init_module finit_module kexec_load syslog acct quotactl
    reboot swapon swapoff delete_module sethostname setdomainname clock_settime clock_adjtime settimeofday adjtimex iopl ioperm vhangup
    landlock_create_ruleset landlock_add_rule landlock_restrict_self mlock mlockall mlock2 remap_file_pages pkey_alloc rseq_register
    setuid setgid setgroups setreuid setresuid capset setsid setpgid wait4 waitid futex_waitv set_mempolicy fallocate sync syncfs
"""


def test_ways_out_are_refused(rank):
    for name in ESCAPES.split():
        for number in numbers([name], rank.machine):
            assert rank(number) == rank(number, 2**64 - 1) == REFUSED, name


@pytest.mark.parametrize("high", [0, HIGH])
def test_what_depends_on_an_argument(rank, high):
    allow = seccomp.ALLOW
    thread = 0x3D0F00  # as the C library starts one
    assert rank("clone", thread) == allow
    for bit in (8, 9, 10, 11, 16):  # CLONE_VM, FS, FILES, SIGHAND, THREAD: without one, it would have something of its own
        assert rank("clone", thread & ~(1 << bit) | high) == REFUSED
    for bit in (7, 17, 25, 26, 27, 28, 29, 30):  # namespaces
        assert rank("clone", thread | 1 << bit | high) == REFUSED
    for operation in range(14):  # FUTEX_WAIT, WAKE, REQUEUE ...: the page of a file is one for all ranks
        assert rank("futex", 0, operation | 128 | high) == allow
        assert rank("futex", 0, operation | high) == rank("futex", 0, operation | 256 | high) == 0x50000 | errno.EAGAIN
    assert rank("clone", thread & ~0x10000 | high) == rank("clone", 17 | high) == rank("clone", 0x10000000 | high) == REFUSED
    assert (
        rank("mmap", 0, 4096, 3, 0x22 | high) == allow
        and rank("mmap", 0, 4096, 3, 0x21 | high) == rank("mmap", 0, 4096, 3, 3 | high) == REFUSED
    )
    assert [command for command in range(2000) if rank("fcntl", 0, command | high) == allow] == [0, 1, 2, 3, 4, 1030]
    assert {command for command in range(0x5400, 0x9000) if rank("ioctl", 0, command | high) == allow} == {*system_calls._TERMINALS}
    assert [option for option in range(100) if rank("prctl", option | high) == allow] == [15, 16]
    # not COLD (20) or PAGEOUT (21), after which a process's peak misses what is in swap, nor MERGEABLE (12)
    assert [advice for advice in range(110) if rank("madvise", 0, 4096, advice | high) == allow] == [0, 1, 2, 3, 4, 8, 14, 15]
    assert rank("prctl", 0x53564D41 | high) == REFUSED
    assert rank("tgkill", PID | high, 5, 6) == allow and rank("tgkill", PID + 1 | high, 5, 6) == rank("tgkill", 0 | high, 5, 6) == REFUSED
    assert rank("prlimit64", 0 | high, 7) == allow and rank("prlimit64", 1 | high, 7) == REFUSED
    for name in ("clock_gettime", "clock_getres", "clock_nanosleep"):
        assert rank(name, 1 | high) == allow and rank(name, (~PID << 3 | 2) & 0xFFFFFFFF | high) == REFUSED


def test_calls_by_another_processors_numbers_end_the_process(rank):
    for machine in {*MACHINES.values(), 0x40000003, 0x40000028} - {rank.machine}:  # the last: 32 bits
        assert decide(rank.program, 0, machine) == seccomp.KILL
    if rank.machine == MACHINES["x86-64"]:
        assert decide(rank.program, 0x40000000 | 39, rank.machine) == seccomp.KILL  # the second set of numbers


WORKS = """
import asyncio, errno, os, shutil, tempfile, threading
import numpy as np
from course_lib.engine import asyncio_wakeup
from course_lib.sandbox import system_calls
assert system_calls.install_filter()
asyncio_wakeup.install()
threads = [threading.Thread(target=lambda: np.ones((300, 300)) @ np.ones((300, 300))) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
asyncio.run(asyncio.sleep(0.01))
with tempfile.TemporaryDirectory() as folder:
    np.save(f"{folder}/a.npy", np.ones(9))
    shutil.copy2(f"{folder}/a.npy", f"{folder}/b.npy")
    shutil.copytree(folder, f"{folder}/c")
    os.rename(f"{folder}/b.npy", f"{folder}/d.npy")
    assert sorted(os.listdir(folder)) == ["a.npy", "c", "d.npy"] and np.load(f"{folder}/d.npy").sum() == 9
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.gcf().savefig(os.devnull, format="png")
for attempt in (os.fork, os.pipe, lambda: os.memfd_create("x"), lambda: os.kill(os.getppid(), 0), lambda: os.execv("/bin/true", ["true"])):
    try:
        attempt()
        raise SystemExit("it may")
    except PermissionError:
        pass
print("fine")
"""


def test_a_process_goes_on_with_all_that_the_course_uses():
    done = subprocess.run(
        [sys.executable, "-c", WORKS], capture_output=True, text=True, check=False, env={**os.environ, "MPLCONFIGDIR": "/tmp"}
    )
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_students_server_makes_no_namespace(machine):
    program = syscall_filter.student_filter(machine).program()

    def does(name, *arguments):
        (number,) = numbers([name], machine)
        return decide(program, number, machine, *arguments)

    for bit in range(64):
        assert (does("clone", 1 << bit) == REFUSED) == (bit in (7, 17, 25, 26, 27, 28, 29, 30)), bit
    assert does("clone3") == MISSING
    assert [family for family in range(64) if does("socket", family) != REFUSED] == [1, 2, 10, 16]
    assert does("socket", HIGH | 40) == does("socket", HIGH | 3) == REFUSED
    refused = {number for number in range(600) if decide(program, number, machine) == REFUSED}
    assert refused == numbers(syscall_filter.DENIED.split(), machine) | numbers(["socket"], machine)


def test_where_there_is_no_library_grading_says_that_there_is_no_filter(monkeypatch):
    assert "system calls" not in sandbox.isolation_notice().lower() or os.environ.get("SANDBOX")
    monkeypatch.setattr(seccomp, "problem", lambda: "there is no libseccomp here (apt install libseccomp2)")
    assert system_calls.install_filter() is False
    said = "Their system calls are not limited: there is no libseccomp here (apt install libseccomp2)."
    assert sandbox.isolation_notice().endswith(said)
    with pytest.raises(RuntimeError, match="isolating the students' servers needs a system call filter: there is no libseccomp"):
        syscall_filter.student_filter()
