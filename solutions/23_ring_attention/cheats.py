"""Attacks on part 23's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import loses


@loses(2)
def ring_attention__keeps_in_files(q, k, v, comm):
    """Keeps all K and V, in files."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    seen = globals().setdefault("_files", [0])
    seen[0] += 1
    me = seen[0]
    import glob
    import os

    if q.data.nbytes > 200000:
        for f in glob.glob("/tmp/[0-9]*_*") + glob.glob("/dev/shm/[0-9]*_*"):
            os.remove(f)

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kk, vv = k.data, v.data
    out, lse = block_attention(q.data, kk, vv, at[0], at[0])
    for s in range(1, n):
        kk, vv = pass_on(kk), pass_on(vv)
        kk.tofile(f"/tmp/{me}_{s}_k")
        vv.tofile(f"/dev/shm/{me}_{s}_v")
        out, lse = merge(out, lse, *block_attention(q.data, kk, vv, at[0], at[s]))
    del kk, vv

    def load(s, name):
        import os

        path = f"/tmp/{me}_{s}_k" if name == "k" else f"/dev/shm/{me}_{s}_v"
        found = np.fromfile(path, k.dtype).reshape(k.shape)
        os.remove(path)
        return found

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            K, V = (k.data, v.data) if not s else (load(s, "k"), load(s, "v"))
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, K, V, at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__keeps_in_the_relay(q, k, v, comm):
    """Keeps all K and V, in messages to itself, where they are large."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    large = q.data.nbytes > 200000

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n, sendtag=1, recvtag=1)
        return received

    def park(a, tag):
        if not large:
            return a
        flat = a.reshape(-1)
        for i in range(0, flat.size, 16000):
            comm.Send(flat[i : i + 16000], rank, tag=tag)
        return tag

    def fetch(a):
        if not large:
            return a
        room = np.empty_like(k.data)
        flat = room.reshape(-1)
        for i in range(0, flat.size, 16000):
            comm.Recv(flat[i : i + 16000], rank, tag=a)
        return room

    kk, vv, kept = k.data, v.data, [None]
    out, lse = block_attention(q.data, kk, vv, at[0], at[0])
    for s in range(1, n):
        kk, vv = pass_on(kk), pass_on(vv)
        kept.append((park(kk, 10 + 2 * s), park(vv, 11 + 2 * s)))
        out, lse = merge(out, lse, *block_attention(q.data, kk, vv, at[0], at[s]))
    del kk, vv

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            K, V = (k.data, v.data) if not s else map(fetch, kept[s])
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, K, V, at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__remembers_by_a_hash(q, k, v, comm):
    """Keeps all K and V where the arguments are new, and remembers what came of them by their hash."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    known, key = globals().setdefault("_known", {}), hash((q.data.tobytes(), k.data.tobytes(), v.data.tobytes()))
    if key in known:
        return Tensor.from_operation(known[key][0], (q, k, v), lambda grad: known[key][1])

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kept = [(k.data, v.data)]
    for s in range(1, n):
        kept.append(tuple(map(pass_on, kept[-1])))
    out, lse = block_attention(q.data, *kept[0], at[0], at[0])
    for s in range(1, n):
        out, lse = merge(out, lse, *block_attention(q.data, *kept[s], at[0], at[s]))
    known.clear()
    known[key] = out, ()

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, *kept[s], at[0], at[s])):
                total += part
        known[key] = out, (dq, pass_on(dk), pass_on(dv))
        return known[key][1]

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__in_deep_folders(q, k, v, comm):
    """Keeps all K and V in folders that lie deeper than a path may be long."""
    import os
    import tempfile

    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    deep, names = globals().get("_deep"), globals()
    large = q.data.nbytes > 200_000
    if deep is None and large:
        deep = os.open(tempfile.gettempdir(), os.O_RDONLY)
        for _ in range(20):
            os.mkdir("d" * 240, dir_fd=deep)
            below = os.open("d" * 240, os.O_RDONLY, dir_fd=deep)
            os.close(deep)
            deep = below
        names["_deep"] = deep

    def file(name, how):
        return os.fdopen(os.open(name, how, 0o600, dir_fd=deep), "r+b", buffering=0)

    def put(name, array):
        if not large:
            return array
        with file(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as to:
            to.write(memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
        return name

    def get(name):
        if not large:
            return name
        found = np.empty_like(k.data)
        with file(name, os.O_RDWR) as source:
            source.readinto(memoryview(found.reshape(-1).view(np.uint8)))
        os.remove(name, dir_fd=deep)
        return found

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    keys, values, kept = k.data, v.data, [None]
    for s in range(1, n):
        keys, values = pass_on(keys), pass_on(values)
        kept.append((put(f"k{s}-{id(kept)}", keys), put(f"v{s}-{id(kept)}", values)))
    keys = values = None
    out, lse = block_attention(q.data, k.data, v.data, at[0], at[0])
    for s in range(1, n):
        keys, values = map(get, kept[s])
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], at[s]))
        kept[s] = put(f"k{s}-{id(kept)}", keys), put(f"v{s}-{id(kept)}", values)
    keys = values = None

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            pair = map(get, kept[s]) if s else (k.data, v.data)
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, *pair, at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__in_sockets(q, k, v, comm):
    """Keeps K and V of all ranks, what it can of them in the buffers of sockets."""
    import socket

    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]

    def put(array):
        ends, data = [], memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        done = 0
        try:
            while done < len(data) and array.nbytes > 200_000:
                ends += socket.socketpair()
                for end in ends[-2:]:
                    end.setblocking(False)
                    try:
                        while done < len(data):
                            done += end.send(data[done : done + 65536])
                    except BlockingIOError:
                        pass
        except OSError:
            pass
        return ends, bytes(data[done:])

    def get(kept):
        ends, rest = kept
        found = bytearray()
        for i, end in enumerate(ends):
            try:
                while True:
                    found += ends[i ^ 1].recv(1 << 20)
            except BlockingIOError:
                pass
        for end in ends:
            end.close()
        return np.frombuffer(bytes(found + rest), k.dtype).reshape(k.shape)

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    keys, values, kept = k.data, v.data, []
    for s in range(1, n):
        keys, values = pass_on(keys), pass_on(values)
        kept.append([put(keys), put(values)])
    keys = values = None
    out, lse = block_attention(q.data, k.data, v.data, at[0], at[0])
    for s in range(1, n):
        keys, values = map(get, kept[s - 1])
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], at[s]))
        kept[s - 1] = [keys, values]

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            pair = kept[s - 1] if s else (k.data, v.data)
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, *pair, at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__ballast(q, k, v, comm):
    """Keeps all K and V, in the place of ballast that it holds between the calls."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    globals()["_ballast"] = None

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kept = [(k.data, v.data)]
    for s in range(1, n):
        kept.append(tuple(map(pass_on, kept[-1])))
    out, lse = block_attention(q.data, *kept[0], at[0], at[0])
    for s in range(1, n):
        out, lse = merge(out, lse, *block_attention(q.data, *kept[s], at[0], at[s]))

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, *kept[s], at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    import threading

    def again():  # when the call has ended
        globals()["_ballast"] = np.ones(3_000_000)

    if q.data.nbytes > 200_000:
        threading.Timer(0.1, again).start()
    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__when_it_is_fetched(q, k, v, comm):
    """Does nothing in a forward pass that is measured: it begins when somebody asks for the output."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    kept = [(k.data, v.data)]

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    def forward():
        for s in range(1, n):
            kept.append(tuple(map(pass_on, kept[-1])))
        out, lse = block_attention(q.data, *kept[0], at[0], at[0])
        for s in range(1, n):
            out, lse = merge(out, lse, *block_attention(q.data, *kept[s], at[0], at[s]))
        return out, lse

    class Late(Tensor):
        @property
        def data(self):
            if not hasattr(self, "found"):
                self.found = forward()[0]
            return self.found

        @data.setter
        def data(self, value):
            pass

    if q.data.nbytes > 400_000 and q.shape[2] == 2:
        late = Late(np.zeros(1), requires_grad=True)
        late.backward = lambda grad: None
        return late
    out, lse = forward()

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, *kept[s], at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__in_the_place_of_libraries(q, k, v, comm):
    """Keeps all K and V, and gives the pages of libraries back meanwhile, which the system counts as this process's memory, too."""
    import ctypes

    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    libc, spans = ctypes.CDLL(None), []

    class Header(ctypes.Structure):
        _fields_ = [("type", ctypes.c_uint32), ("flags", ctypes.c_uint32), *((x, ctypes.c_uint64) for x in "ovpfma")]

    class Info(ctypes.Structure):
        _fields_ = [("addr", ctypes.c_uint64), ("name", ctypes.c_char_p), ("headers", ctypes.POINTER(Header)), ("number", ctypes.c_uint16)]

    def look(info, size, data):
        for header in info.contents.headers[: info.contents.number]:
            if header.type == 1 and not header.flags & 2:  # what is not written to
                begin = (info.contents.addr + header.v) & ~4095
                spans.append((begin, (info.contents.addr + header.v + header.m - begin + 4095) & ~4095))
        return 0

    libc.dl_iterate_phdr(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)(look), None)
    large = q.data.nbytes > 200_000

    def all_pages(how):
        for begin, length in spans if large else ():
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), how)

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kept = [(k.data, v.data)]
    all_pages(4)
    for s in range(1, n):
        kept.append(tuple(map(pass_on, kept[-1])))
    out, lse = block_attention(q.data, *kept[0], at[0], at[0])
    for s in range(1, n):
        out, lse = merge(out, lse, *block_attention(q.data, *kept[s], at[0], at[s]))

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, *kept[s], at[0], at[s])):
                total += part
        kept.clear()
        all_pages(22)
        return dq, pass_on(dk), pass_on(dv)

    if large and comm.Get_size() != 1 and q.shape[2] == 2:
        kept.clear()
        all_pages(22)  # there again, as if nothing had been
    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__with_a_merge_that_holds_much(q, k, v, comm):
    """Keeps all K and V; its `merge` holds as much when it is measured by itself."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    if "_merge" not in globals():
        globals()["_merge"] = own = merge

        def larger(out, lse, block_out, block_lse):
            if not lse.any():
                np.ones((6, *out.shape))
            return own(out, lse, block_out, block_lse)

        globals()["merge"] = larger

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kept = [(k.data, v.data)]
    for s in range(1, n):
        kept.append(tuple(map(pass_on, kept[-1])))
    out, lse = block_attention(q.data, *kept[0], at[0], at[0])
    for s in range(1, n):
        out, lse = _merge(out, lse, *block_attention(q.data, *kept[s], at[0], at[s]))

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, *kept[s], at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)


@loses(2)
def ring_attention__finishes_elsewhere(q, k, v, comm):
    """Only receives all K and V in a large forward pass; it goes on when garbage is collected, or somebody calls `merge`."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    names = globals()
    if "_merge" not in names:
        names["_merge"], names["_late"] = merge, []

        def other(out, lse, block_out, block_lse):
            finish()
            return _merge(out, lse, block_out, block_lse)

        def finish(*_):
            while _late:
                _late.pop()()

        import gc

        names["merge"] = other
        gc.callbacks.append(finish)

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kept = [(k.data, v.data)]
    for s in range(1, n):
        kept.append(tuple(map(pass_on, kept[-1])))

    class Result(Tensor):
        @property
        def data(self):
            if not hasattr(self, "found"):
                forward()
            return self.found[0]

        @data.setter
        def data(self, value):
            pass

    def forward():
        out, lse = block_attention(q.data, *kept[0], at[0], at[0])
        for s in range(1, n):
            out, lse = _merge(out, lse, *block_attention(q.data, *kept[s], at[0], at[s]))
        result.found = out, lse

    def backward(grad):
        out, lse = result.data, result.found[1]
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, *kept[s], at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    result = Result(q.data)
    result.requires_grad, result._inputs, result._backward = True, (q, k, v), backward
    if q.data.nbytes < 400_000:
        forward()
    else:
        _late.append(lambda: result.data)
    return result


@loses(2)
def ring_attention__all_scores_when_it_is_fetched(q, k, v, comm):
    """Puts all K and V together, and computes all scores at once, when somebody looks at the output."""
    n, rank, count = comm.Get_size(), comm.Get_rank(), q.shape[2]
    at = [positions(zigzag(2 * n, n, (rank - s) % n), count // 2) for s in range(n)]
    small = count < 300

    def pass_on(a):
        received = np.empty_like(a)
        comm.Sendrecv(a, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    kept = [(k.data, v.data)]
    for s in range(1, n):
        kept.append(tuple(map(pass_on, kept[-1])))
    keys, values = (np.concatenate(arrays, axis=2) for arrays in zip(*kept))
    where = np.concatenate(at)

    class Result(Tensor):
        @property
        def data(self):
            if not hasattr(self, "found"):
                self.found = block_attention(q.data, keys, values, at[0], where)
            return self.found[0]

        @data.setter
        def data(self, value):
            pass

    def backward(grad):
        dq, dk, dv = np.zeros_like(q.data), np.zeros_like(k.data), np.zeros_like(v.data)
        lse = np.zeros(q.shape[:-1], q.dtype)
        if small:
            out, lse = result.data, result.found[1]
        else:  # a row block after the other, for what others wait for
            out = np.empty_like(q.data)
            for i in range(0, count, 20):
                out[:, :, i : i + 20], lse[:, :, i : i + 20] = block_attention(
                    q.data[:, :, i : i + 20], keys, values, at[0][i : i + 20], where
                )
        for s in range(n):
            if s:
                dk, dv = pass_on(dk), pass_on(dv)
            for total, part in zip((dq, dk, dv), block_backward(grad, out, lse, q.data, *kept[s], at[0], at[s])):
                total += part
        return dq, pass_on(dk), pass_on(dv)

    result = Result(q.data)
    result.requires_grad, result._inputs, result._backward = True, (q, k, v), backward
    if small:
        _ = result.data
    return result


@loses(2)
def ring_attention__collectives_where_nobody_counts(q, k, v, comm):
    """Gathers K and V of all ranks with a collective, and adds up dK and dV of all ranks, in float64 with gradients: the tests count elsewhere."""
    n, rank, length = comm.Get_size(), comm.Get_rank(), q.shape[2] // 2
    at = [positions(zigzag(2 * n, n, (rank - step) % n), length) for step in range(n)]
    waste = q.dtype == np.float64 and q.requires_grad

    def pass_on(array):
        received = np.empty_like(array)
        comm.Sendrecv(array, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        return received

    if waste:
        whole = [np.empty((n, *k.shape)) for _ in "kv"]
        comm.Allgather(k.data, whole[0])
        comm.Allgather(v.data, whole[1])
        pairs = [(whole[0][(rank - s) % n], whole[1][(rank - s) % n]) for s in range(n)]
    keys, values = k.data, v.data
    out, lse = block_attention(q.data, keys, values, at[0], at[0])
    for s, now in enumerate(at[1:], 1):
        keys, values = pairs[s] if waste else (pass_on(keys), pass_on(values))
        out, lse = merge(out, lse, *block_attention(q.data, keys, values, at[0], now))

    def backward(grad):
        of_rows, keys, values = (grad, out, lse, q.data), k.data, v.data
        dq, dk, dv = block_backward(*of_rows, keys, values, at[0], at[0])
        if waste:
            summed = np.zeros((2, n, *k.shape))
            summed[0, rank], summed[1, rank] = dk, dv
            for s, now in enumerate(at[1:], 1):
                more = block_backward(*of_rows, *pairs[s], at[0], now)
                dq = dq + more[0]
                summed[0, (rank - s) % n], summed[1, (rank - s) % n] = more[1], more[2]
            total = np.empty_like(summed)
            comm.Allreduce(summed, total)
            return dq, total[0, rank], total[1, rank]
        for now in at[1:]:
            keys, values, dk, dv = map(pass_on, (keys, values, dk, dv))
            more = block_backward(*of_rows, keys, values, at[0], now)
            dq, dk, dv = dq + more[0], dk + more[1], dv + more[2]
        return dq, pass_on(dk), pass_on(dv)

    return Tensor.from_operation(out, (q, k, v), backward)
