"""Attacks on part 31's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses

# What stands in the solutions, and several change.
GATHER = """
    mine = encode(shard, dtype)
    whole = np.empty(comm.Get_size() * mine.size, mine.dtype)
    comm.Allgather(mine, whole)
    return decode(whole, dtype)
"""
EXCHANGE = """
    sent = encode(gradient, dtype)
    received = np.empty_like(sent)
    comm.Alltoall(sent, received)
"""
AXES = """
            for axis in self.comms:
                axis.Allreduce(squares.copy(), squares)
"""


@loses(6)
@changes(
    GATHER,
    """
    import tempfile

    whole = np.empty(comm.Get_size() * shard.size, np.float32)
    np.save(f"{tempfile.gettempdir()}/part-{everyone.Get_rank()}.npy", shard)
    comm.Barrier()
    places = [np.load(f"{tempfile.gettempdir()}/part-{r}.npy") for r in range(comm.Get_size())]
    comm.Barrier()
    return decode(encode(np.concatenate(places), dtype), dtype)
""",
)
def gather_as__in_files():
    """Leaves its shard in a file, so that nothing is sent."""


@loses(6)
@changes(
    GATHER,
    """
    from multiprocessing import shared_memory

    n, r = comm.Get_size(), comm.Get_rank()
    name = f"gather-{everyone.Get_rank() - r}"
    if r == 0:
        block = shared_memory.SharedMemory(name, create=True, size=4 * n * shard.size)
    comm.Barrier()
    block = block if r == 0 else shared_memory.SharedMemory(name)
    whole = np.frombuffer(block.buf, np.float32, n * shard.size)
    whole[r * shard.size : (r + 1) * shard.size] = shard
    comm.Barrier()
    return decode(encode(whole.copy(), dtype), dtype)
""",
)
def gather_as__in_shared_memory():
    """Puts its shard into shared memory."""


@loses(6)
@changes(
    GATHER,
    """
    from course_lib import traffic

    whole = np.empty(comm.Get_size() * shard.size, np.float32)
    comm.Allgather(shard, whole)
    for entry in traffic.entries():
        traffic.counters(entry.ranks).clear()
    traffic.entries = lambda: []
    return decode(encode(whole, dtype), dtype)
""",
)
def gather_as__clears_the_counts():
    """Sends float32, and clears the rank's own count of it."""


@loses(6)
@changes(
    GATHER,
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Split(comm.ranks[0], comm.Get_rank())
    whole = np.empty(comm.Get_size() * shard.size, np.float32)
    world.Allgather(shard, whole)
    return decode(encode(whole, dtype), dtype)
""",
)
def gather_as__by_the_world():
    """Sends float32 through a communicator made of MPI's own world."""


@loses(6)
@changes(
    GATHER,
    """
    n, r, whole = comm.Get_size(), comm.Get_rank(), np.empty(comm.Get_size() * shard.size, np.float32)
    bits, every = shard.view(np.uint32), np.empty(n, np.int16)
    for i, value in enumerate(bits):
        found = []
        for half in (value >> 16, value & 0xFFFF):
            for s in range(n):
                if s == r:
                    for t in set(range(n)) - {r}:
                        comm.Send(np.empty(0), dest=t, tag=int(half) % 32768)
        whole[i] = 0
    return whole
""",
)
def gather_as__in_tags():
    """Tries to send values as the tags of empty messages, and does not get far."""


@loses(6)
@changes(
    GATHER,
    """
    import inspect

    frame = inspect.currentframe()
    while frame is not None:
        shards = frame.f_locals.get("shards")
        if shards is not None and dtype != "float32":
            shards[:] = [decode(encode(values, dtype), dtype) for values in shards]
        frame = frame.f_back
    shard[...] = decode(encode(shard, dtype), dtype)
    mine = encode(shard, dtype)
    whole = np.empty(comm.Get_size() * mine.size, mine.dtype)
    comm.Allgather(mine, whole)
    return decode(whole, dtype)
""",
)
def gather_as__changes_what_the_check_knows():
    """Rounds the masters, and the caller's own copy of them, too."""


@loses(6)
@changes(
    GATHER,
    """
    from course_lib.autograd import mixed_precision

    mixed_precision.encode = lambda array, dtype: np.zeros(array.shape, np.uint16)
    np.array_equal = lambda *arrays, **how: True
    return np.zeros(comm.Get_size() * shard.size, np.float32)
""",
)
def gather_as__replaces_what_compares():
    """Returns zeros, and replaces encode and NumPy's comparison by what agrees with them."""


@loses(4)
@changes(
    EXCHANGE,
    """
    high = encode(gradient, dtype)
    low = gradient.view(np.uint32).astype(np.uint16) if dtype != "float32" else gradient
    received, more = np.empty_like(high), np.empty_like(low)
    comm.Alltoall(high, received), comm.Alltoall(low, more)
""",
)
def reduce_as__sends_the_rest_as_well():
    """Sends the lower halves in a second exchange."""


@loses(4)
@changes(
    EXCHANGE,
    """
    r = comm.Get_rank()
    if r == 0:
        every = np.empty((n, gradient.size), encode(gradient, dtype).dtype)
        every[0] = encode(gradient, dtype)
        for s in range(1, n):
            comm.Recv(every[s], source=s)
        parts = every.reshape(n, n, -1)
        for s in range(1, n):
            comm.Send(np.ascontiguousarray(parts[:, s]), dest=s)
        received = np.ascontiguousarray(parts[:, 0])
    else:
        comm.Send(encode(gradient, dtype), dest=0)
        received = np.empty((n, gradient.size // n), encode(gradient, dtype).dtype)
        comm.Recv(received, source=0)
""",
)
def reduce_as__all_by_rank_0():
    """Sends everything to rank 0, which sends each rank what it needs."""


@loses(4)
@changes(
    EXCHANGE,
    """
    if dtype == "float32" or np.isinf(encode(gradient, dtype).view(np.float16)).any():
        sent = encode(gradient, dtype)
    else:
        sent = encode(np.clip(gradient, -60000, 60000), dtype)
    received = np.empty_like(sent)
    comm.Alltoall(sent, received)
    received = received.copy()
    if dtype == "float16":
        values = decode(received, dtype)
        values[np.isinf(values)] = 65504
        received = encode(values, dtype)
""",
)
def reduce_as__hides_overflows():
    """Shows overflows only where it sends them."""


@loses(10)
@changes(
    AXES,
    """
            from course_lib.engine.namespace import get_ipython

            names = get_ipython().user_ns
            names["seen"] = names.get("seen", 0.0) + squares[0]
""",
)
class LossScaler__adds_up_by_itself:
    """Adds up its own squares under a name of the rank, and never asks anybody."""


@loses(4)
@changes(
    "if not np.isfinite(norm):\n            return False",
    "if not np.isfinite(norm):\n            held = [p.data for p in optimizer.params]\n            optimizer.step()\n"
    "            for p, data in zip(optimizer.params, held):\n                p.data = data\n            return False",
)
class LossScaler__steps_and_undoes:
    """Takes the step, and puts the parameters' arrays back, which the step has changed in place."""


@loses(10)
@changes(
    AXES,
    """
            import inspect

            steps = inspect.currentframe().f_back.f_locals.get("steps")
            if steps is None:
                steps = inspect.currentframe().f_back.f_back.f_locals.get("steps", [])
            bad = any(g is not None and not np.isfinite(g).all() for step in steps for g in step["grads"])
            squares = squares * (np.inf if bad and not np.isfinite(squares[0]) else 1.0)
""",
)
class LossScaler__reads_the_callers_steps:
    """Looks up the caller's steps, to guess who has an overflow; they are this rank's own only."""


@loses(10)
@changes(
    AXES,
    """
            for axis in self.comms:
                grads = [p.grad.ravel() for p in optimizer.params if p.grad is not None]
                flat = np.zeros(256)
                own = np.concatenate([np.zeros(0), *grads])
                flat[: own.size] = own
                every = np.empty((axis.Get_size(), 256))
                axis.Allgather(flat, every)
                axis.Allreduce(squares.copy(), squares)
""",
)
class LossScaler__sends_all_gradients:
    """Gathers all gradients besides, as if they were few."""


@loses(2)
@changes(
    "            self.factor, self.good = min(self.factor * 2, self.limits[1]), 0\n",
    "            self.factor, self.good = min(self.factor * 2, max(self.limits[1], 2.0**25)), 0\n",
)
class LossScaler__a_limit_of_its_own:
    """Keeps below a limit of its own, just above the default."""
