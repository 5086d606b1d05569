"""Ranks that are isolated: what they reach (nothing), what is counted, and that a legal answer notices nothing."""

import contextlib
import math
import os
import socket
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from course_lib.cluster import Ranks, RanksGone
from course_lib.cluster.isolated import launcher
from course_lib.cluster.replies import RanksError
from course_lib.engine.processes.mpiexec import StartError
from course_lib.sandbox import bubblewrap, landlock, resource_usage

MODES = [bubblewrap.UNSANDBOXED] + (
    [bubblewrap.SANDBOXED] if bubblewrap.problem() is None else []
)  # conftest.py says so where there is no sandbox


def up(mode, monkeypatch):
    monkeypatch.setenv(bubblewrap.ISOLATION_VARIABLE, mode)
    monkeypatch.setenv("COURSE_TEST_TOKEN", "for the instructor alone")
    ranks = Ranks(3)
    ranks.run("import numpy as np\nfrom course_lib.collectives import Communicator\ncomm = Communicator()\nrank = comm.Get_rank()")
    return ranks


@pytest.fixture(scope="module")
def shared():
    """Ranks of each mode, for tests that leave nothing behind on them."""
    running = {}
    with pytest.MonkeyPatch.context() as patch:

        def of(mode):
            patch.setenv(bubblewrap.ISOLATION_VARIABLE, mode)
            if mode not in running:
                running[mode] = up(mode, patch)
            return running[mode]

        yield of
    for ranks in running.values():
        ranks.stop()


@pytest.fixture(params=MODES)
def three(request, shared):
    return shared(request.param)


@pytest.fixture(params=([bubblewrap.UNSANDBOXED] if landlock.abi_version() else []) + MODES[1:])
def hidden(request, shared):
    """Ranks that are hidden from all files, by bubblewrap or by Landlock."""
    return shared(request.param)


@pytest.fixture(params=MODES[1:])
def sandboxed(request, shared):
    return shared(request.param)


@pytest.fixture(params=MODES)
def fresh(request, monkeypatch):
    """Ranks for one test alone."""
    ranks = up(request.param, monkeypatch)
    yield ranks
    ranks.stop()


def collectives(x):
    """On a rank: every collective once, on two groups."""
    found = {}
    for name, group in (("all", comm), ("two", comm.Split(color=rank // 2))):
        n = group.Get_size()
        found[name] = sums, gathered, part, cast = np.empty_like(x), np.empty((n, *x.shape)), np.empty(x.size), x.copy()
        group.Allreduce(x, sums)
        group.Allgather(x, gathered)
        group.Reduce_scatter(np.tile(x, n), part)
        group.Bcast(cast, root=n - 1)
        group.Barrier()
    return found


def test_collectives_are_those_of_mpi_and_are_counted(three):
    xs = [np.random.default_rng(r).standard_normal(5) for r in range(3)]
    answers = three.call(collectives, [dict(x=x) for x in xs])
    for r, found in enumerate(answers):
        for name, members in (("all", [0, 1, 2]), ("two", [0, 1] if r < 2 else [2])):
            sums, gathered, part, cast = found[name]
            own = [xs[m] for m in members]
            assert np.allclose(sums, sum(own)) and np.array_equal(gathered, own) and np.allclose(part, sum(own))
            assert np.array_equal(cast, own[-1])
    payload = {(e[0], len(e[1])): e[3] for e in three.traffic[0]}
    assert payload["Allreduce", 3] == 40 and payload["Allgather", 3] == 120 and payload["Reduce_scatter", 3] == 120
    assert payload["Allreduce", 2] == 40 and payload["Bcast", 3] == 40


def test_what_is_sent_is_counted_whatever_the_rank_says(three):
    def send_and_forget():
        from course_lib import traffic

        comm.Allreduce(np.ones(10), np.empty(10))
        traffic.reset()
        traffic.entries = lambda: []

    three.call(send_and_forget)
    assert three.traffic == [[("Allreduce", [0, 1, 2], 1, 80)]] * 3


def test_mpi_knows_of_no_other_rank_and_its_world_is_the_communicators(three):
    def world():
        from mpi4py import MPI

        w, found = MPI.COMM_WORLD, np.empty(1)
        w.Allreduce(np.ones(1), found)
        alone = MPI.Intracomm(w).Get_size(), Communicator(MPI.COMM_SELF).Get_size()
        return w.Get_rank() == w.rank == rank, w.Get_size(), w.size, comm.Get_size(), Communicator(w).Get_size(), found[0], alone

    assert three.call(world) == [(True, 3, 3, 3, 3, 3.0, (1, 1))] * 3
    assert three.traffic == [[("Allreduce", [0, 1, 2], 1, 8)]] * 3
    three.run("from mpi4py import MPI")
    with pytest.raises(RanksError, match=r"MPI\.COMM_WORLD\.send reaches no other rank when a notebook is graded"):
        three.call(lonely)


def lonely():
    MPI.COMM_WORLD.send(1, dest=0)


def test_a_deadlock_and_a_mismatch_are_said_and_cannot_be_hidden(three):
    def alone():
        if rank:
            comm.Barrier()

    def swallowed():
        try:
            comm.Allreduce(np.ones(2 + rank), np.empty(2 + rank))
        except RuntimeError:
            return 1.0

    with pytest.raises(RanksError, match=r"ranks 1, 2.*Barrier #1 on world\{0–2\}.*rank 0 has finished"):
        three.call(alone)
    with pytest.raises(RanksError, match="make different calls"):
        three.call(swallowed)
    assert three.call(collectives, dict(x=np.ones(2)))


def test_a_cell_that_never_ends_is_interrupted_and_the_next_one_works(fresh):
    assert {reply["error"]["name"] for _, reply in fresh.run("while True: pass", limit=0.5)} == {"TimeLimit"}
    assert {reply["error"]["name"] for _, reply in fresh.run("while True: comm.Barrier()", limit=0.5)} == {"TimeLimit"}
    assert [reply["error"] for _, reply in fresh.run("comm.Barrier()")] == [None] * 3


def ways_out():
    """On a rank: what it can do that it should not."""
    import ctypes
    import mmap
    import resource
    import subprocess
    from platform import machine

    libc, rights = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(24)
    tries = {
        "fork": os.fork,
        "a program": lambda: subprocess.run(["/bin/sh", "-c", "true"], check=True),
        "become a program": lambda: os.execv("/bin/sh", ["sh"]),
        "a socket": socket.socket,
        "a pair of sockets": socket.socketpair,
        "a pipe": os.pipe,
        "a file without a name": lambda: os.memfd_create("x"),
        "a namespace": lambda: libc.unshare(0x10000000) and 1 / 0,
        "a mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) and 1 / 0,
        "a key": lambda: libc.syscall(248, b"user", b"x", b"x", 1, -2) < 0 and 1 / 0,
        "memory that is shared": lambda: mmap.mmap(-1, 4096),
        "a signal": lambda: os.kill(os.getppid() or 1, 0),
        "another one's limits": lambda: resource.prlimit(os.getppid() or 1, resource.RLIMIT_CPU),
        "more memory": lambda: resource.setrlimit(resource.RLIMIT_DATA, (-1, -1)),
        "two gigabytes": lambda: np.ones(1 << 28),
        "a larger socket": lambda: socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24),
        "descriptors in a message": lambda: socket.send_fds(socket.socketpair()[0], [b"x"], [0]),
        "a ring of the kernel": lambda: libc.syscall(206 if machine() == "x86_64" else 0, 100, ctypes.byref(ctypes.c_void_p())) and 1 / 0,
        "what all have": lambda: libc.sysinfo(ctypes.create_string_buffer(256)) and 1 / 0,
        "room on the disk": lambda: os.statvfs("."),
        "another one's clock": lambda: time.clock_gettime(~(os.getppid() or 1) << 3 | 2),
        "the machine's name": lambda: libc.sethostname(socket.gethostname().encode(), len(socket.gethostname())) and 1 / 0,
        "a timer": lambda: libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) and 1 / 0,
        "a right of root": lambda: libc.capget(bytes.fromhex("2205082000000000"), rights) or any(rights.raw) or 1 / 0,
        "an account that nobody reads": lambda: libc.prctl(4, 0, 0, 0, 0) and 1 / 0,
        "a filter": lambda: libc.prctl(22, 2, ctypes.c_char_p(b"\0" * 16), 0, 0) and 1 / 0,
        "a hundred files": lambda: [open(os.devnull) for _ in range(100)],
    }
    done = []
    for name, attempt in tries.items():
        try:
            attempt()
            done.append(name)
        except (OSError, ValueError, MemoryError, ZeroDivisionError, subprocess.SubprocessError):
            pass
    return done


def test_a_rank_gets_no_process_no_socket_and_no_more_than_its_share(three):
    assert three.call(ways_out) == [[]] * 3


def visible(places):
    """On a rank: files outside these places, folders that it can write to, its environment, its user."""
    files, writable = [], []
    for folder, folders, names in os.walk("/"):
        if any(folder == p or folder.startswith(p + "/") for p in places):
            folders.clear()
            continue
        files += [f"{folder}/{name}".replace("//", "/") for name in names]
    for folder, folders, _ in os.walk("/"):
        if os.access(folder, os.W_OK):
            writable.append(folder)
            folders.clear()
    return files, writable, dict(os.environ), os.getuid()


def test_a_rank_sees_python_and_the_library_and_nothing_else(sandboxed, tmp_path):
    import sys

    import course_lib

    shown = [sys.prefix, sys.base_prefix, str(Path(course_lib.__file__).parent), "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/tmp", "/dev"]
    for rank, (files, writable, environment, user) in enumerate(sandboxed.call(visible, dict(places=shown))):
        assert set(files) <= {"/etc/ld.so.cache", os.path.realpath(sys.executable)}
        assert sorted(writable) == ["/dev/shm", "/tmp"]
        assert "COURSE_TEST_TOKEN" not in environment and "for the instructor alone" not in environment.values()
        assert os.geteuid() or user == bubblewrap.FIRST_USER_ID + rank


def test_secrets_of_the_host_are_out_of_reach(hidden, tmp_path):
    folders = [tmp_path, Path.home(), Path("/var/tmp"), Path("/tmp")]
    secrets = [folder / f".course-secret-{os.getpid()}" for folder in folders]
    with socket.socket(socket.AF_UNIX) as service, socket.socket(socket.AF_UNIX) as abstract:
        for secret in secrets:
            secret.write_text("secret")
        try:
            service.bind(place := f"{tempfile.mkdtemp()}/service")  # the path of a socket may not be long
            service.listen()
            abstract.bind(f"\0course-{os.getpid()}")
            abstract.listen()
            addresses = [place, f"\0course-{os.getpid()}"]
            assert hidden.call(reached, dict(paths=[str(s) for s in secrets], addresses=addresses)) == [[]] * 3
        finally:
            for secret in secrets:
                secret.unlink()


def where():
    return os.getcwd()


def reached(paths, addresses):
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append(open(path).read())
    for address in addresses:
        with contextlib.suppress(OSError), socket.socketpair(type=socket.SOCK_DGRAM)[0] as end:
            end.connect(address)
            found.append(address)
    return found


def test_ranks_reach_each_other_by_the_relay_alone(hidden):
    def leave(folders):
        import signal

        for folder in folders:
            with contextlib.suppress(OSError):
                open(f"{folder}/from-{rank}", "w").write("x")
        for pid in range(2, 40):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def find(folders):
        found = []
        for folder in folders:
            with contextlib.suppress(OSError):
                found += [name for name in os.listdir(folder) if name.startswith("from-")]
        return found

    folders = ["/tmp", "/dev/shm", "/var/tmp", *hidden.call(where), *[str(Path(p).parent) for p in hidden.call(where)]]
    hidden.call(leave, dict(folders=folders))
    assert all(set(found) <= {f"from-{r}"} and found for r, found in enumerate(hidden.call(find, dict(folders=folders))))


def test_files_without_names_count(fresh):
    before = fresh.held()
    fresh.run("""
import mmap, os, socket, tempfile
kept = [tempfile.TemporaryFile()]
kept[0].write(bytes(range(256)) * 12_000)
kept[0].flush()
with open("x", "wb+") as file:
    file.write(bytes(range(256)) * 12_000)
    file.flush()
    os.unlink("x")
    kept.append(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ))
""")
    assert all(5.8e6 < after - b < 8e6 for after, b in zip(fresh.held(), before, strict=True))


def test_what_a_rank_holds_is_read_from_the_system(fresh):
    before = fresh.held()
    fresh.run("import mmap\nkept = mmap.mmap(-1, 8_000_000, mmap.MAP_PRIVATE)\nkept[:] = bytes(8_000_000)")
    fresh.run("from course_lib import memory\nmemory.alive = lambda: 0")
    assert all(7.5e6 < after - b < 9e6 for after, b in zip(fresh.held(), before, strict=True))
    fresh.run("del kept")
    assert all(abs(after - b) < 1e6 for after, b in zip(fresh.held(), before, strict=True))


def test_no_memory_comes_in_huge_pages(three):
    """They come 2 MB at a time, here and there, and a right answer would seem to hold what it never had."""
    three.run("kept = np.ones(4 << 20)")
    for rank in three._connection.client._usage.values():
        lines = Path(f"/proc/{rank.process.pid}/smaps_rollup").read_text().splitlines()
        assert [line.split()[1] for line in lines if line.startswith("AnonHugePages")] == ["0"]


def test_the_most_that_a_rank_held_is_read_from_the_system(fresh):
    def hold(size):
        from course_lib import memory

        memory.live_array_bytes = lambda: 0
        both = np.ones(size), np.ones(size // 2)
        return len(both)

    fresh.call(hold, [dict(size=10), dict(size=1 << 20), dict(size=1 << 21)], peak=True)
    assert all(abs(seen - 12 * size) < 2 << 20 for seen, size in zip(fresh.peaks, (10, 1 << 20, 1 << 21), strict=True)), fresh.peaks
    fresh.call(hold, dict(size=10), peak=True)
    assert max(fresh.peaks) < 2 << 20, "the most of an earlier call"
    fresh.call(hold, dict(size=10))
    assert fresh.peaks == [None] * 3


def test_what_a_rank_held_before_counts_and_its_account_goes_on(fresh):
    def give_back():
        global kept
        if "kept" in globals():
            del kept

    def keep(size):
        return len(np.ones(size))

    fresh.run("kept = np.ones(2 << 20)")
    fresh.call(give_back, peak=True)
    assert max(fresh.peaks) < 4 << 20, "what is there already is not new"
    fresh.run("kept = np.ones(2 << 20)")
    fresh.call(give_back, peak=4 << 20)
    assert min(fresh.peaks) > 10 << 20, "what is given back makes no room"
    fresh.call(keep, dict(size=2 << 20), peak="goes on")
    assert min(fresh.peaks) > 10 << 20, "still since then"
    fresh.call(keep, dict(size=10), peak=True)
    assert max(fresh.peaks) < 4 << 20


@pytest.mark.parametrize(("after", "left"), [("pass", 1), ("request.Wait()", 0), ("while not request.Test(): pass", 0)])
def test_a_large_message_has_not_ended_before_its_rank_asks(three, after, left):
    """However early it is received: who waits for nothing is found without luck."""
    source = f"""
def send():
    if rank == 0:
        request = comm.Isend(np.ones(1000), dest=1)
    if rank == 1:
        comm.Recv(np.empty(1000), source=0)
    comm.Barrier()
    if rank == 0:
        {after}
"""
    three.run(source)
    three.call("send")
    assert three.unended == [left, 0, 0]


def test_who_touches_files_while_it_is_measured_may_have_held_all_that_there_is_room_for(fresh):
    def hide(how):
        import os
        import tempfile

        path = f"{tempfile.gettempdir()}/kept"
        if how == "gone again":
            with open(path, "wb") as file:
                file.write(bytes(1000))
            os.remove(path)
        elif how == "opened before":
            kept.write(b"x")
            kept.flush()

    fresh.run("import os, tempfile\nkept = open(tempfile.gettempdir() + '/open', 'wb')\nos.remove(tempfile.gettempdir() + '/open')")
    for how, charged in (("not at all", False), ("gone again", True), ("opened before", True), ("not at all", False)):
        fresh.call(hide, dict(how=how), peak=True)
        assert all((seen >= 2 * bubblewrap.FOLDER_BYTES) == charged for seen in fresh.peaks), (how, fresh.peaks)


DEEP = """
import os, tempfile
at = os.open(tempfile.gettempdir(), os.O_RDONLY)
for _ in range(20):
    os.mkdir("d" * 240, dir_fd=at)
    below = os.open("d" * 240, os.O_RDONLY, dir_fd=at)
    os.close(at)
    at = below
file = os.fdopen(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=at), "wb", buffering=0)
file.write(bytes(range(256)) * 20_000)
file.close()
"""


@pytest.mark.parametrize("fresh", MODES[1:], indirect=True)
def test_files_deeper_than_a_path_may_be_long_count(fresh):
    before = fresh.held()
    fresh.run(DEEP)
    assert all(5e6 < after - b < 6e6 for after, b in zip(fresh.held(), before, strict=True))
    for writes in (False, True):  # what cannot be listed might have been changed meanwhile
        fresh.call(write_deep, dict(writes=writes), peak=True)
        assert min(fresh.peaks) >= 2 * bubblewrap.FOLDER_BYTES


def write_deep(writes):
    if writes:
        os.close(os.open("x", os.O_TRUNC | os.O_WRONLY, dir_fd=at))


def test_folders_that_cannot_be_listed_end_a_rank_without_a_sandbox(monkeypatch):
    ranks = up(bubblewrap.UNSANDBOXED, monkeypatch)
    try:
        with pytest.raises(RuntimeError, match="cannot be listed"):
            ranks.run(DEEP + "\nimport time\ntime.sleep(30)", limit=10)
    finally:
        ranks.stop()


def test_what_cannot_be_listed_counts_in_full(tmp_path, monkeypatch):
    import psutil

    monkeypatch.setattr(resource_usage.ResourceUsage, "_stopped", lambda self: contextlib.nullcontext())  # it is this process
    monkeypatch.setattr(resource_usage.ResourceUsage, "_status", lambda self, *names: 0)  # whose memory comes and goes
    monkeypatch.setattr(resource_usage.ResourceUsage, "_unlinked_bytes", lambda self: 0)
    (tmp_path / "closed").mkdir()
    one = resource_usage.ResourceUsage(psutil.Process(), tmp_path)
    assert one.exceeded_limit() is None
    before, scandir = one.used(), os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert one.used() - before == resource_usage.MAX_WRITTEN_BYTES and "cannot be listed" in one.exceeded_limit()
    one.reset_peak(math.inf)
    assert one.peak() in (None, resource_usage.MAX_WRITTEN_BYTES)


def test_pages_of_libraries_that_are_given_back_make_no_room(fresh):
    def swap(size):
        import time

        if size:
            library.madvise(mmap.MADV_DONTNEED)
            kept = np.ones(size // 8)
            time.sleep(0.1)
            del kept
        return sum(library[::4096])

    fresh.run("""
import mmap
with open(np._core._multiarray_umath.__file__, "rb") as file:
    library = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
""")
    fresh.call(swap, dict(size=0))
    fresh.call(swap, dict(size=5 << 20), peak=True)
    assert min(fresh.peaks) > 4 << 20, fresh.peaks


def test_asyncio_runs_without_sockets(three):
    def loops():
        import asyncio
        import threading
        from concurrent.futures import ThreadPoolExecutor

        async def add(x):
            await asyncio.sleep(0.001)
            return x + await asyncio.to_thread(len, "ab")

        with ThreadPoolExecutor(4) as pool:
            found = [asyncio.run(add(x)) for x in range(20)] + list(pool.map(lambda x: asyncio.run(add(x)), range(8)))
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        found.append(asyncio.run_coroutine_threadsafe(add(0), loop).result(10))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
        return sum(found)

    assert three.call(loops) == [190 + 40 + 28 + 16 + 2] * 3


@pytest.mark.slow
def test_a_broker_survives_what_ranks_send(monkeypatch):
    monkeypatch.setenv(bubblewrap.ISOLATION_VARIABLE, bubblewrap.UNSANDBOXED)
    nonsense = (
        "from course_lib.collectives.transport import isolated\nnumber = 3 + isolated.rank  # of this request\n",
        "isolated.connection._connection.sendall(b'\\xff' * 64)",
        "isolated.connection.send({'call': 1, 'members': 7}, b'')",
        "isolated.connection.send({'reply': 2}, b'{}')",
        "isolated.connection.send({'reply': number}, b'[' * 200_000)",
        "isolated.connection.send({'reply': number}, b'[' + b'1,' * 3_000_000 + b'1]')",
        "isolated.connection.send({'reply': number, 'text': 1}, b'{}')",
        "isolated.connection.send({'reply': number, 'text': 1 << 70}, b'{')",
        "isolated.connection.send({'something': 'else'})",
        "isolated.connection._connection.close()",
    )
    for code in nonsense[1:]:
        ranks = Ranks(2)
        try:
            with pytest.raises(RuntimeError):
                ranks.run(nonsense[0] + code + "\nimport time\ntime.sleep(30)", limit=10)
        finally:
            ranks.stop()


def test_ranks_leave_no_shared_memory_behind(fresh):
    pids = [fresh._connection.client.rank_process(r).pid for r in range(3)]
    fresh.stop()
    assert not [pid for pid in pids if os.path.exists(f"/dev/shm/mpich_shm_{pid:x}_0")]


def looks_for_the_search(words):
    """On a rank: what can be imported, found in the library's folder, or read under the path that the library has elsewhere."""
    import importlib
    import os

    import course_lib

    found = []
    for name in ("course_lib.sim.plan", "course_lib.sim.plan.search", "course_lib.sim.plan.check"):
        try:
            found.append(getattr(importlib.import_module(name), "__file__", None))
        except ImportError:
            found.append(None)
    folders = [os.path.join(os.path.dirname(course_lib.__file__), "sim"), words]
    files = [os.path.join(at, file) for folder in folders for at, _, names in os.walk(folder) for file in names]
    return [file for file in found if file] + [file for file in files if "search" in file or f"plan{os.sep}" in file]


def test_a_rank_has_nothing_that_would_do_an_exercise(hidden):
    import course_lib

    where = Path(course_lib.__file__).parent / "sim"
    assert (where / "plan" / "search.py").exists() and bubblewrap.HIDDEN_FOLDERS == ("sim/plan",)
    assert hidden.call(looks_for_the_search, {"words": str(where)}) == [[]] * 3


def test_ranks_share_no_futex_in_a_page_of_a_file(three):
    """A rank that wakes another one learns a number from it, by the page's place; see man 2 futex, and FUTEX_PRIVATE_FLAG."""
    source = """
import ctypes, mmap, os, platform, time
libc, number = ctypes.CDLL(None, use_errno=True), 202 if platform.machine() == "x86_64" else 98
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
base = libc.mmap(None, 4096, 1, 2, os.open(np.__file__, os.O_RDONLY), 0)
def futex(place, operation, value, wait=None):
    return libc.syscall(ctypes.c_long(number), ctypes.c_void_p(base + 4 * place), operation, ctypes.c_uint32(value), wait, None, 0)
if comm.Get_rank() == 0:
    span = (ctypes.c_long * 2)(2, 0)
    futex(77, 0, ctypes.c_uint32.from_address(base + 4 * 77).value, ctypes.byref(span))
else:
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        found = [place for place in range(1024) if futex(place, 1, 1) > 0]
        assert not found, f"another rank says {found}"
"""
    assert [reply["error"] for _, reply in three.run(source)] == [None] * 3


def test_a_long_doubles_padding_shows_nothing_of_the_notebook(three):
    source = """
for n in (4, 64, 300, 2000):
    got = np.zeros(n, np.longdouble)
    comm.Allreduce(np.zeros(n, np.longdouble), got)
    assert not got.view(np.uint8).any(), got.view(np.uint8).nonzero()
"""
    assert [reply["error"] for _, reply in three.run(source)] == [None] * 3


def test_a_rank_whose_main_thread_has_ended_is_ended(fresh):
    source = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
threading.Timer(0.3, lambda: None).start()
ctypes.CDLL(None).syscall(ctypes.c_long(60 if platform.machine() == "x86_64" else 93), ctypes.c_long(0))
"""
    with pytest.raises(RanksGone, match="its main thread has ended"):
        fresh.run(source, limit=30)


def test_a_rank_without_the_filter_that_its_grader_has_does_not_come_up(monkeypatch):
    begin = launcher.RankFolders.__init__

    def without(self):
        begin(self)
        module = self.library / "course_lib" / "sandbox" / "seccomp.py"
        module.write_text(module.read_text() + "\n\ndef problem():\n    return 'no library'\n")

    monkeypatch.setattr(launcher.RankFolders, "__init__", without)
    monkeypatch.setenv(bubblewrap.ISOLATION_VARIABLE, bubblewrap.UNSANDBOXED)
    with pytest.raises(StartError, match="cannot limit its system calls, although the process that starts it can: no library"):
        Ranks(2)


def test_pages_that_are_only_touched_count(fresh):
    """The kernel's page tables remember which pages of a large empty array were read: that is memory, too."""
    before = fresh.held()
    fresh.run("""
import mmap
kept = mmap.mmap(-1, 2 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
read = sum(kept[i] for i in range(0, 2 << 30, 1 << 21))
""")
    assert all(after - b > 4_000_000 for after, b in zip(fresh.held(), before, strict=True))
