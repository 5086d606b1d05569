"""Attacks on part 03's hidden tests: each says how many points its answer must lose all the same."""

import contextlib

from grading.authoring.answers import loses


@loses(6)
def naive_collect_forward_output__forgets_what_it_sent(out, mp_comm, mp_size):
    """Sends everything two times, and resets the counters."""
    from course_lib import traffic

    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    mp_comm.Allgather(out, parts)
    traffic.reset()
    mp_comm._counts.clear()
    return np.concatenate(list(parts), axis=1)


@loses(9)
def naive_collect_forward_output__beside_the_communicator(out, mp_comm, mp_size):
    """Sends by mpi4py's world, as if nobody counted it: an all-reduce of everything."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    group = world.Split(color=world.Get_rank() // mp_size)
    parts = np.zeros((group.Get_size(), *out.shape), out.dtype)
    parts[group.Get_rank()] = out
    group.Allreduce(parts.copy(), parts)
    return np.concatenate(list(parts), axis=1)


@loses(9)
def naive_collect_forward_output__by_a_file(out, mp_comm, mp_size):
    """Leaves its part in a file for the others."""
    import pathlib
    import time

    for folder in ("/dev/shm", "/tmp", "/var/tmp", "."):
        try:
            np.save(pathlib.Path(folder) / f"part-{mp_comm.ranks[mp_comm.Get_rank()]}.npy", out)
        except OSError:
            continue
        time.sleep(0.3)
        try:
            return np.concatenate([np.load(pathlib.Path(folder) / f"part-{r}.npy") for r in mp_comm.ranks], axis=1)
        except OSError:
            continue
    return out


@loses(9)
def naive_collect_forward_output__in_shared_memory(out, mp_comm, mp_size):
    """A segment that has a name."""
    import time
    from multiprocessing import shared_memory

    mine = shared_memory.SharedMemory(f"part-{mp_comm.ranks[mp_comm.Get_rank()]}", create=True, size=out.nbytes)
    mine.buf[: out.nbytes] = out.tobytes()
    time.sleep(0.3)
    found = [shared_memory.SharedMemory(f"part-{r}") for r in mp_comm.ranks]
    return np.concatenate([np.frombuffer(f.buf, out.dtype, out.size).reshape(out.shape) for f in found], axis=1)


@loses(9)
def naive_collect_forward_output__by_a_socket(out, mp_comm, mp_size):
    """Talks over loopback."""
    import socket
    import time

    ports = [40_000 + r for r in mp_comm.ranks]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind(("127.0.0.1", ports[mp_comm.Get_rank()]))
        time.sleep(0.3)
        for port in ports:
            mine.sendto(bytes([mp_comm.Get_rank()]) + out.tobytes(), ("127.0.0.1", port))
        found = sorted(mine.recv(1 << 16) for _ in ports)
    return np.concatenate([np.frombuffer(f[1:], out.dtype).reshape(out.shape) for f in found], axis=1)


@loses(9)
def naive_collect_forward_output__by_the_colors_of_groups(out, mp_comm, mp_size):
    """Smuggles 63 bits in each call of Split, which counts as no traffic."""
    words = np.frombuffer(np.pad(np.frombuffer(out.tobytes(), np.uint8), (0, -out.nbytes % 4)).tobytes(), np.uint32)
    everyone = np.zeros((mp_size, len(words)), np.uint32)
    for i, word in enumerate(words):
        seen = np.empty((mp_size, 2), np.int64)
        group = mp_comm._group
        group.meet(4, -1, 0, 0)
        group.finish(group.mpi.Iallgather(np.array([int(word), 0], np.int64), seen), 4)
        everyone[:, i] = seen[:, 0]
    parts = [np.frombuffer(row.tobytes()[: out.nbytes], out.dtype).reshape(out.shape) for row in everyone]
    return np.concatenate(parts, axis=1)


@loses(9)
def naive_collect_forward_output__by_the_sentences_of_errors(out, mp_comm, mp_size):
    """Makes calls that do not match: the message says what each rank called, its numbers included."""
    import re

    from course_lib.collectives.calls import Call

    words = np.frombuffer(np.pad(np.frombuffer(out.tobytes(), np.uint8), (0, -out.nbytes % 4)).tobytes(), np.uint32)
    everyone = np.zeros((mp_size, len(words)), np.uint32)
    for i, word in enumerate(words):
        try:
            mp_comm.transport.run(Call(1, 12, 8 * int(word) + mp_comm.Get_rank(), 1, np.empty(0), np.empty(0)))
        except RuntimeError as error:
            for count in map(int, re.findall(r"of (\d+) float64", str(error))):
                everyone[count % 8, i] = count // 8
    parts = [np.frombuffer(row.tobytes()[: out.nbytes], out.dtype).reshape(out.shape) for row in everyone]
    return np.concatenate(parts, axis=1)


@loses(9)
def naive_collect_forward_output__lies_about_the_size(out, mp_comm, mp_size):
    """Says that it sends one byte a rank, and sends all."""
    from course_lib.collectives.transport import isolated

    isolated.connection.send({"call": -1, "members": list(mp_comm.ranks), "signature": [2, 1, 1, 0], "place": ""}, out.tobytes())
    _, data = isolated.connection.receive()
    parts = np.frombuffer(data, out.dtype).reshape(mp_size, *out.shape)
    return np.concatenate(list(parts), axis=1)


@loses(9)
def naive_collect_forward_output__in_the_name_of_a_group(out, mp_comm, mp_size):
    """Sends on the group of all ranks as on one of its own, so that the formula makes less of it."""
    from course_lib.collectives.transport import isolated

    me = isolated.rank
    isolated.connection.send({"call": -1, "members": [me], "signature": [2, out.dtype.num, out.size, 0], "place": ""}, out.tobytes())
    _, data = isolated.connection.receive()
    return np.frombuffer(data, out.dtype).reshape(out.shape)


@loses(15)
def cell__looks_for_the_test():
    """Takes what a function of the test has as its own, and what the notebook has."""
    import gc

    def naive_collect_forward_input(x, mp_comm, mp_size):
        found = [a for a in gc.get_objects() if isinstance(a, np.ndarray) and a.shape == (x.shape[0], x.shape[1] * mp_size)]
        return found[0] if found else x

    naive_collect_forward_output = naive_collect_forward_input


@loses(15)
def cell__patches_the_wire():
    """Whatever comes back, it says that it is right."""
    import course_lib.check
    import course_lib.engine.requests.handler as handler
    import course_lib.engine.serialization as wire

    wire.encode = lambda value, depth=0: {"opaque": "right"}
    handler.describe_error = lambda error: None
    course_lib.check.Check.array = course_lib.check.Check.fail = lambda *_, **__: None


@loses(15)
def cell__answers_for_the_rank():
    """Replies by itself, before it is asked, and for all requests to come."""
    import json

    from course_lib.collectives.transport import isolated

    reply = json.dumps({"outputs": [], "error": None, "value": {"float": "0x1p0"}}).encode()
    for number in range(1, 400):
        isolated.connection.send({"reply": number}, reply)


@loses(15)
def cell__dies():
    import os

    os._exit(0)


@loses(15)
def cell__closes_its_line():
    from course_lib.collectives.transport import isolated

    isolated.connection._connection.close()


@loses(15)
def cell__sends_nonsense():
    from course_lib.collectives.transport import isolated

    isolated.connection._connection.sendall(b"\xff" * 64)


@loses(15)
def cell__sends_a_deep_answer():
    from course_lib.collectives.transport import isolated

    isolated.connection.send({"reply": 2}, b"[" * 200_000)


@loses(9)
def naive_collect_forward_output__by_locks(out, mp_comm, mp_size):
    """Locks places of a file that all ranks read; where a lock begins is a number."""
    import fcntl
    import struct

    file, me = open(np.__file__, "rb"), mp_comm.ranks[mp_comm.Get_rank()]
    for i, word in enumerate(np.frombuffer(out.tobytes(), np.uint32)):
        fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, 0, (me << 58) + (i << 33) + 2 * int(word), 1, 0))
    mp_comm.Barrier()
    parts = []
    for r in mp_comm.ranks:
        words = []
        for i in range(out.nbytes // 4 if r != me else 0):
            start = (r << 58) + (i << 33)
            asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, start, 1 << 33, 0)
            words.append((struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))[2] - start) // 2)
        parts.append(np.array(words, np.uint32).view(out.dtype).reshape(out.shape) if r != me else out)
    mp_comm.Barrier()
    return np.concatenate(parts, axis=1)


@loses(9)
def naive_collect_forward_output__by_what_is_cached(out, mp_comm, mp_size):
    """Throws a file that all ranks read out of memory; others see that it is not there."""
    import os

    file = os.open(np.__file__, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT)
    parts = np.empty((mp_size, *out.shape), out.dtype)  # what it could have been told
    mp_comm.Allgather(out, parts)
    return np.concatenate(list(parts), axis=1)


@loses(6)
def naive_collect_forward_output__as_a_reduction_of_its_own(out, mp_comm, mp_size):
    """Has the coordinator give everybody everything, and calls it a reduce-scatter."""
    from course_lib.collectives.transport import isolated

    me, columns = mp_comm.Get_rank(), out.shape[1]
    whole = np.zeros((out.shape[0], columns * mp_size), out.dtype)
    whole[:, me * columns : (me + 1) * columns] = out
    header = {"call": -1, "members": list(mp_comm.ranks), "signature": [3, out.dtype.num, whole.size, 11], "place": ""}
    isolated.connection.send(header, whole.tobytes())
    _, data = isolated.connection.receive()
    return np.frombuffer(data, out.dtype).reshape(mp_size, *whole.shape).sum(axis=0, dtype=out.dtype)


@loses(9)
def naive_collect_forward_output__starts_threads(out, mp_comm, mp_size):
    """Thousands of threads, with small stacks."""
    import threading
    import time

    threading.stack_size(32768)
    for _ in range(2_000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    time.sleep(1)
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    return np.concatenate(list(parts), axis=1)


@loses(9)
def naive_collect_forward_output__leaves_names(out, mp_comm, mp_size):
    """Millions of files without a byte in them."""
    import os

    for i in range(100_000):
        os.symlink("x", f"{os.environ.get('TMPDIR', '/tmp')}/{i:0>200}")
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    return np.concatenate(list(parts), axis=1)


@loses(9)
def naive_collect_forward_output__by_symbolic_links(out, mp_comm, mp_size):
    """Writes its part into links in its own folder; what a link says can be read without a right to the folder."""
    import base64
    import os
    import time

    room = os.environ.get("TMPDIR", "/tmp")
    above, text = os.path.dirname(room), base64.b64encode(out.tobytes()).decode()
    for i in range(0, len(text), 3000):
        with contextlib.suppress(OSError):
            os.symlink("x" + text[i : i + 3000], f"{room}/{out.size}-{i}")
    time.sleep(0.3)
    try:
        rooms = sorted(f"{above}/{name}" for name in os.listdir(above))
    except OSError:
        rooms = [f"{above}/rank-{r}" for r in mp_comm.ranks]
    try:
        parts = ["".join(os.readlink(f"{room}/{out.size}-{i}")[1:] for i in range(0, len(text), 3000)) for room in rooms]
        return np.concatenate([np.frombuffer(base64.b64decode(part), out.dtype).reshape(out.shape) for part in parts], axis=1)
    except (OSError, ValueError):
        return out
