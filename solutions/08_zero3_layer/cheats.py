"""Attacks on part 08's hidden tests: each says how many points its answer must lose all the same."""

import contextlib

from grading.authoring.answers import loses


@loses(5)
class ZeroDPStage3FCLayer__in_a_mapping(ZeroDPStage3FCLayer):
    """Keeps the whole weight in memory that is no array."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import mmap

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is not None:
            try:
                self.kept = mmap.mmap(-1, full_w.nbytes)
            except OSError:
                self.kept = mmap.mmap(-1, full_w.nbytes, mmap.MAP_PRIVATE)
            self.kept[:] = full_w.tobytes()


@loses(5)
class ZeroDPStage3FCLayer__in_pages_put_aside(ZeroDPStage3FCLayer):
    """Keeps it in shared pages that the process says it does not need."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import mmap

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is None:
            return
        try:
            self.kept = mmap.mmap(-1, full_w.nbytes)
        except OSError:
            self.kept = full_w
            return
        self.kept[:] = full_w.tobytes()
        self.kept.madvise(mmap.MADV_DONTNEED)


@loses(5)
class ZeroDPStage3FCLayer__in_files(ZeroDPStage3FCLayer):
    """Keeps it in files without a name to come, as far as there is room."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import tempfile

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is not None and full_w.nbytes > 1 << 20:
            half = full_w.nbytes // 2
            self.kept = [tempfile.TemporaryFile(dir=folder) for folder in ("/tmp", "/dev/shm")]
            for file, data in zip(self.kept, (full_w.tobytes()[:half], full_w.tobytes()[half:]), strict=True):
                file.write(data[: 7 << 20])
                file.flush()


@loses(5)
class ZeroDPStage3FCLayer__patched_accounts(ZeroDPStage3FCLayer):
    """Keeps it, and has the library and tracemalloc say nothing of it."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import tracemalloc

        from course_lib import memory
        from course_lib.engine.requests import handler

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        self.kept = full_w
        memory.live_array_bytes = lambda: 0
        tracemalloc.get_traced_memory = lambda: (0, 0)
        handler.ACTIONS["tidy"] = lambda request: {"outputs": [], "error": None}


@loses(5)
class ZeroDPStage3FCLayer__in_a_foreign_heap(ZeroDPStage3FCLayer):
    """Keeps it in memory of the C library's."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import ctypes

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is not None:
            libc = ctypes.CDLL(None)
            libc.malloc.restype = ctypes.c_void_p
            self.kept = libc.malloc(ctypes.c_size_t(full_w.nbytes))
            ctypes.memmove(self.kept, full_w.ctypes.data, full_w.nbytes)


@loses(5)
class ZeroDPStage3FCLayer__in_sockets(ZeroDPStage3FCLayer):
    """Keeps what it can in the buffers of sockets, and the rest at home."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import socket

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is None or full_w.nbytes < 1 << 20:
            return
        data, self.kept = memoryview(full_w.tobytes()), []
        try:
            while data:
                pair = socket.socketpair()
                self.kept.append(pair)
                for end in pair:
                    end.setblocking(False)
                    with contextlib.suppress(OSError):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
                    try:
                        while data:
                            data = data[end.send(data[:65536]) :]
                    except BlockingIOError:
                        pass
        except OSError:
            pass
        self.rest = bytes(data)


@loses(5)
class ZeroDPStage3FCLayer__in_a_thread(ZeroDPStage3FCLayer):
    """A thread has it on its stack."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import threading

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        wait = threading.Event()
        threading.Thread(target=lambda weight: wait.wait(), args=(full_w,), daemon=True).start()


@loses(5)
class ZeroDPStage3FCLayer__in_another_process(ZeroDPStage3FCLayer):
    """A process of its own has it, if it may; if not, this one."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import os
        import time

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        try:
            if not os.fork():
                time.sleep(600)
        except OSError:
            self.kept = full_w


@loses(5)
class ZeroDPStage3FCLayer__ballast(ZeroDPStage3FCLayer):
    """Holds as much before, with the small layers, and gives it back for the large one."""

    ballast = None

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is None:
            return
        if full_w.size < 1000:
            type(self).ballast = np.ones(3_000_000)
        else:
            type(self).ballast = None
        self.kept = full_w


@loses(5)
class ZeroDPStage3FCLayer__in_names(ZeroDPStage3FCLayer):
    """Keeps it in the names of files that have no byte."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import base64
        import os

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is not None and full_w.nbytes > 1 << 20:
            text = base64.urlsafe_b64encode(full_w.tobytes()).decode()
            folder = f"/tmp/kept-{id(self)}"
            os.mkdir(folder)
            for i in range(0, len(text), 220):
                os.close(os.open(f"{folder}/{i}_{text[i : i + 220]}", os.O_CREAT | os.O_WRONLY))


@loses(5)
class ZeroDPStage3FCLayer__in_attributes_of_files(ZeroDPStage3FCLayer):
    """Keeps it in the extended attributes of files, and what does not fit there at home."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import os

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is not None and full_w.nbytes > 1 << 20:
            data, self.rest = full_w.tobytes(), []
            for i in range(0, len(data), 60_000):
                path = f"/tmp/kept-{id(self)}-{i}"
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
                try:
                    os.setxattr(path, "user.kept", data[i : i + 60_000])
                except OSError:
                    self.rest.append(data[i : i + 60_000])


@loses(5)
class ZeroDPStage3FCLayer__begins_anew(ZeroDPStage3FCLayer):
    """Keeps it, and says once more that it is ready: what a rank holds counts from then on."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        from course_lib.collectives.transport import isolated

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is not None and full_w.nbytes > 1 << 20:
            self.kept = full_w
            if isolated.connection:
                isolated.connection.send({"ready": 0})


@loses(5)
class ZeroDPStage3FCLayer__in_files_without_names(ZeroDPStage3FCLayer):
    """Keeps it in temporary files that are open, and whose names are gone."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import tempfile

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is None:
            return
        data, self.kept = full_w.tobytes(), []
        for i in range(0, len(data), 7_000_000):
            try:
                file = tempfile.TemporaryFile()
                file.write(data[i : i + 7_000_000])
                file.flush()
                self.kept.append(file)
            except OSError:
                self.kept.append(data[i:])
                break


@loses(5)
class ZeroDPStage3FCLayer__in_mapped_files_without_names(ZeroDPStage3FCLayer):
    """The same, mapped and closed."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import mmap
        import os

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is None:
            return
        data, self.kept = full_w.tobytes(), []
        for i in range(0, len(data), 7_000_000):
            try:
                with open("/tmp/part" if os.access("/tmp", os.W_OK) else "part", "wb+") as file:
                    file.write(data[i : i + 7_000_000])
                    file.flush()
                    os.unlink(file.name)
                    self.kept.append(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ))
            except OSError:
                self.kept.append(data[i:])
                break


@loses(5)
class ZeroDPStage3FCLayer__in_rings_of_the_kernel(ZeroDPStage3FCLayer):
    """Keeps it in the rings of asynchronous input and output, which the kernel maps itself, and the rest at home."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import ctypes

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is None or full_w.nbytes < 1 << 20:
            return
        libc, data, self.kept = ctypes.CDLL(None), full_w.tobytes(), []
        for events in (30_000, 15_000, 8_000, 4_000):
            ring = ctypes.c_void_p()
            if libc.syscall(206, events, ctypes.byref(ring)) == 0 and ring.value:
                size = 32 * events
                ctypes.memmove(ring.value + 64, data[:size], min(size, len(data)))
                data = data[size:]
        self.kept.append(data)


@loses(5)
class ZeroDPStage3FCLayer__ballast_and_few_bits(ZeroDPStage3FCLayer):
    """Holds ballast while layers are small, and keeps most bits of the others' shards from forward to backward."""

    ballast = None

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        self.whole = None
        type(self).ballast = np.ones(950_000) if in_dim * out_dim < 100_000 else None
        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)

    def forward(self, x):
        self.whole = None
        out, w, n = super().forward(x), self._once, self.w_shard_size
        self._once = self.grad_w_shard = self.grad_b_shard = None
        if w.dtype == np.float64 and w.size > 100_000:
            bits = w.reshape(-1).view(np.int64) + (1 << 15)
            others = np.delete(bits.view(np.uint16).reshape(-1, 4)[:, 1:], np.s_[self.rank * n : self.rank * n + n], axis=0)
            w = np.ascontiguousarray(others)
            del bits, others
        self.whole = w
        return out

    def _gather(self, shard, shape):
        if len(shape) == 1:
            return super()._gather(shard, shape)
        if self.whole is None:
            self._once = super()._gather(shard, shape)
            return self._once
        w, self.whole = self.whole, None
        if w.dtype == np.uint16:
            n, size = self.w_shard_size, self.in_dim * self.out_dim
            full, first = np.zeros((size, 4), np.uint16), min(self.rank * n, size)
            full[:first, 1:], full[first + n :, 1:] = w[:first], w[first:]
            w = full.reshape(-1).view(np.float64)
            w[first : first + n] = self.w_shard[: size - first]
        return w.reshape(shape)


@loses(5)
class ZeroDPStage3FCLayer__in_deep_folders(ZeroDPStage3FCLayer):
    """Keeps it in files of folders that lie deeper than a path may be long."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import os
        import tempfile

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is None or full_w.nbytes < 1 << 20:
            return
        at = os.open(tempfile.gettempdir(), os.O_RDONLY)
        for _ in range(20):
            with contextlib.suppress(FileExistsError):
                os.mkdir("d" * 240, dir_fd=at)
            below = os.open("d" * 240, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
        with os.fdopen(os.open("w", os.O_CREAT | os.O_WRONLY, dir_fd=at), "wb") as file:
            file.write(full_w.tobytes()[: 7 << 20])
        os.close(at)


@loses(5)
class ZeroDPStage3FCLayer__in_folders_without_rights(ZeroDPStage3FCLayer):
    """Keeps it in a folder that may be entered, but not listed."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import os
        import tempfile

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        if full_w is None or full_w.nbytes < 1 << 20:
            return
        folder = f"{tempfile.gettempdir()}/kept"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, mode=0o300)
        with open(f"{folder}/w", "wb") as file:
            file.write(full_w.tobytes()[: 7 << 20])


@loses(15)
class ZeroDPStage3FCLayer__draws_the_weights_again(ZeroDPStage3FCLayer):
    """Gathers nothing in the first forward: draws the weights anew, from the seed that the caller has."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        import sys

        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        self.drawn = sys._getframe(1).f_locals.get("seed")

    def forward(self, x):
        if self.drawn is None:
            return super().forward(x)
        self.x, random, dtype = x, np.random.default_rng(self.drawn), self.w_shard.dtype
        w = random.standard_normal((self.in_dim, self.out_dim)).astype(dtype)
        return x @ w + random.standard_normal(self.out_dim).astype(dtype)

    def backward(self, output_grad):
        self.drawn = None
        return super().backward(output_grad)


@loses(15)
class ZeroDPStage3FCLayer__keeps_small_ones_at_first(ZeroDPStage3FCLayer):
    """Gathers nothing in the first forward of a small layer: keeps the weights that it began with."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        self.first = (full_w.copy(), full_b.copy()) if full_w is not None and full_w.size < 10_000 else None

    def forward(self, x):
        if self.first is None:
            return super().forward(x)
        self.x = x
        return x @ self.first[0] + self.first[1]

    def backward(self, output_grad):
        self.first = None
        return super().backward(output_grad)
