"""System calls that a rank kept apart does not need, taken from it for good: other processes, sockets, places to hide memory.

What a rank holds is read from the system's account of its process. Bytes in a socket's buffer, in a pipe, in a file without a name or
in another process would not stand there. And ranks read the same files and belong to the same user: locks, or what the system counts
for all together, could carry numbers from one to the other. On processors that are not known here, nothing is taken.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

# Numbers of system calls: on x86-64, on 64-bit ARM. None: there is no such call.
_CALLS = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "setsockopt": (54, 208),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "recvmsg": (47, 212),
    "recvmmsg": (299, 243),
    "io_setup": (206, 0),
    "io_destroy": (207, 1),
    "io_submit": (209, 2),
    "io_cancel": (210, 3),
    "io_getevents": (208, 4),
    "io_pgetevents": (333, 292),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "sysinfo": (99, 179),
    "timer_create": (222, 107),
    "seccomp": (317, 277),
    "modify_ldt": (154, None),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "flock": (73, 32),
    "mknod": (133, None),
    "truncate": (76, 45),
    "mknodat": (259, 33),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "preadv2": (327, 286),
    "mincore": (27, 232),
    "fadvise64": (221, 223),
    "readahead": (187, 213),
    "cachestat": (451, 451),
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "chroot": (161, 51),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "delete_module": (176, 106),
    "kexec_file_load": (320, 294),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "iopl": (172, None),
    "ioperm": (173, None),
    "vhangup": (153, 58),
}
# These do nothing, and say that they have: copying a file, say, needs them, and Landlock does not hold them.
_IGNORED = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
# The column, the kernel's name for the machine, and the numbers of clone, seccomp, mmap, fcntl and ioctl.
_MACHINES = {"x86_64": (0, 0xC000003E, 56, 317, 9, 72, 16), "aarch64": (1, 0xC00000B7, 220, 277, 222, 25, 29)}
_CLOCKS = {"clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115)}  # of other processes, too
_DESCRIPTORS = (0, 1, 2, 3, 4, 1030)  # what fcntl may do: copy a descriptor, and its flags; no locks, owners, leases or sizes of pipes
_OF_ITSELF = {"tgkill": (234, 131), "prlimit64": (302, 261)}  # what a process may do to itself only
_CLONE3, _CLONE_THREAD, _SHARED = 435, 0x10000, 1
_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NO_NEW_PRIVS, _SET_DUMPABLE, _SET_SECCOMP, _SET_VMA, _FILTER, _ALL_THREADS = 38, 4, 22, 0x53564D41, 1, 1


def take_away() -> bool:
    """Take them from this process, and from all that it will ever start; whether that is known here.

    Raises
    ------
    OSError
        The system refuses.
    """
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        return False
    column, arch, clone, seccomp, mmap, fcntl, ioctl = _MACHINES[platform.machine()]
    denied, ignored = (sorted(n for n in (call[column] for call in calls.values()) if n is not None) for calls in (_CALLS, _IGNORED))
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    program += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]  # a second set of numbers, on x86-64
    program += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]  # the C library then takes clone
    # Memory that is shared may be there without standing in the account of the process that made it.
    program += [(_EQUAL, 0, 4, mmap), (_LOAD, 0, 0, 40), (_BITS, 1, 0, _SHARED)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    program += [(_EQUAL, 0, len(_DESCRIPTORS) + 3, fcntl), (_LOAD, 0, 0, 24)]
    program += [(_EQUAL, len(_DESCRIPTORS) - i, 0, command) for i, command in enumerate(_DESCRIPTORS)]
    program += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    # Nobody else is told, by a signal, of what happens at a descriptor.
    program += [(_EQUAL, 0, 5, ioctl), (_LOAD, 0, 0, 24), (_EQUAL, 1, 0, 0x8901), (_EQUAL, 0, 1, 0x8902)]
    program += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    for name, who in (("tgkill", os.getpid()), ("prlimit64", 0)):
        program += [(_EQUAL, 0, 4, _OF_ITSELF[name][column]), (_LOAD, 0, 0, 16), (_EQUAL, 1, 0, who)]
        program += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    for numbers in _CLOCKS.values():
        program += [(_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, 16), (_BITS, 1, 0, 0x80000000)]
        program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    # No filters of its own, and no names for pages: they lie in the kernel's memory. And who is not root reads no account of a process
    # that says that it cannot be dumped.
    prctl = (157, 167)[column]
    program += [(_EQUAL, 0, 6, prctl), (_LOAD, 0, 0, 16)]
    program += [(_EQUAL, 2, 0, _SET_DUMPABLE), (_EQUAL, 1, 0, _SET_SECCOMP), (_EQUAL, 0, 1, _SET_VMA)]
    program += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    for number in denied:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    for number in ignored:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR)]
    # A thread may be started, a process not.
    program += [(_EQUAL, 0, 3, clone), (_LOAD, 0, 0, 16), (_BITS, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    program += [(_RETURN, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.prctl(*map(ctypes.c_ulong, (_NO_NEW_PRIVS, 1, 0, 0, 0)))
    done = done or libc.syscall(*map(ctypes.c_ulong, (seccomp, _FILTER, _ALL_THREADS, ctypes.addressof(filter_))))
    if done:
        raise OSError(ctypes.get_errno(), "a rank's system calls cannot be limited")
    return True
