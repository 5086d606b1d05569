"""Attacks on part 30's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses


@loses(10)
def ring_reduce_scatter__on_another_group(x, comm, op):
    """Calls MPI's collective on a group that it makes of the same ranks."""
    n, rank = comm.Get_size(), comm.Get_rank()
    other = comm.Split(0, rank)
    padded, ops = np.pad(x.ravel(), (0, -x.size % n)), {np.add: MPI.SUM, np.minimum: MPI.MIN, np.maximum: MPI.MAX, np.multiply: MPI.PROD}
    part = np.empty(padded.size // n, x.dtype)
    other.Reduce_scatter(padded, part, op=ops[op])
    return part


@loses(10)
def ring_reduce_scatter__on_the_world(x, comm, op):
    """MPI's own world, behind the communicator's back."""
    n, rank = comm.Get_size(), comm.Get_rank()
    padded, ops = np.pad(x.ravel(), (0, -x.size % n)), {np.add: MPI.SUM, np.minimum: MPI.MIN, np.maximum: MPI.MAX, np.multiply: MPI.PROD}
    whole = np.empty_like(padded)
    MPI.Intracomm.Allreduce(MPI.COMM_WORLD, padded, whole, ops[op])
    return np.split(whole, n)[rank].copy()


@loses(10)
def ring_reduce_scatter__with_the_transport(x, comm, op):
    """Calls the transport, below the communicator that counts."""
    from course_lib.collectives import calls
    from course_lib.collectives.calls import Call

    n, rank = comm.Get_size(), comm.Get_rank()
    padded = np.pad(x.ravel(), (0, -x.size % n))
    whole = np.empty((n, padded.size), x.dtype)
    comm.transport.run(Call(calls.ALLGATHER, padded.dtype.num, padded.size, send=padded, recv=whole))
    return np.split(op.reduce(whole, axis=0, dtype=x.dtype), n)[rank].copy()


@loses(10)
def ring_reduce_scatter__in_the_tags(x, comm, op):
    """Sends bytes as tags of empty messages."""
    n, rank = comm.Get_size(), comm.Get_rank()
    padded = np.pad(x.ravel(), (0, -x.size % n))
    bytes_of = padded.view(np.uint8)
    total, nothing = padded.copy(), np.empty(0)
    passed = bytes_of.copy()
    for _ in range(n - 1):
        received = np.empty_like(passed)
        status = MPI.Status()
        for i, value in enumerate(passed):
            comm.Send(nothing, (rank + 1) % n, tag=int(value))
            comm.Recv(nothing, (rank - 1) % n, status=status)
            received[i] = status.Get_tag()
        total, passed = op(total, received.view(x.dtype)), received
    return np.split(total, n)[rank].copy()


@loses(10)
def ring_reduce_scatter__in_files(x, comm, op):
    """Exchanges files instead of messages, with empty messages for their order."""
    import os
    import tempfile

    n, rank = comm.Get_size(), comm.Get_rank()
    padded = np.pad(x.ravel(), (0, -x.size % n))
    folder, nothing = tempfile.gettempdir(), np.empty(0)
    np.save(os.path.join(folder, f"part30_{rank}.npy"), padded)
    for _ in range(n - 1):
        comm.Sendrecv(nothing, (rank + 1) % n, recvbuf=nothing.copy(), source=(rank - 1) % n)
    everything = np.stack([np.load(os.path.join(folder, f"part30_{other}.npy")) for other in range(n)])
    return np.split(op.reduce(everything, axis=0, dtype=x.dtype), n)[rank].copy()


@loses(10)
@changes("for step in range(1, n):\n", "for step in range(1, n):\n        comm.Ibarrier().Wait()\n")
def ring_reduce_scatter__quiet_barriers():
    """Nonblocking barriers between the steps."""


@loses(10)
def ring_reduce_scatter__in_small_messages(x, comm, op):
    """Messages so small that a send never waits."""
    n, rank = comm.Get_size(), comm.Get_rank()
    pieces = np.zeros((n, -(-x.size // n)), x.dtype)
    pieces.reshape(-1)[: x.size] = x.reshape(-1)
    received, few = np.empty_like(pieces[0]), 64 // x.itemsize
    for step in range(1, n):
        sent, added = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        for i in range(0, sent.size, few):
            comm.Send(sent[i : i + few], (rank + 1) % n)
        for i in range(0, sent.size, few):
            comm.Recv(received[i : i + few], (rank - 1) % n)
        op(received, added, out=added)
    return pieces[rank].copy()


@loses(10)
def ring_reduce_scatter__small_ones_whole(x, comm, op):
    """A ring where arrays are large, and all to all where they are small and nobody seems to count."""
    n, rank = comm.Get_size(), comm.Get_rank()
    pieces = np.pad(x.ravel(), (0, -x.size % n)).reshape(n, -1).copy()
    if x.nbytes <= 64:
        total, received = pieces[rank].copy(), np.empty_like(pieces)
        for other in range(n):
            if other != rank:
                comm.Send(pieces, other)
        for other in range(n):
            if other != rank:
                comm.Recv(received, other)
                total = op(total, received[rank])
        return total
    received = np.empty_like(pieces[0])
    for step in range(1, n):
        sent, added = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        comm.Sendrecv(sent, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        op(received, added, out=added)
    return pieces[rank].copy()


@loses(10)
def ring_reduce_scatter__says_it_sent_less(x, comm, op):
    """Whole arrays, and then the library's counts are set back."""
    from course_lib import traffic

    n, rank = comm.Get_size(), comm.Get_rank()
    padded = np.pad(x.ravel(), (0, -x.size % n))
    total, passed, received = padded.copy(), padded.copy(), np.empty_like(padded)
    for _ in range(n - 1):
        comm.Sendrecv(passed, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        total, passed = op(total, received), received.copy()
    traffic.reset()
    return np.split(total, n)[rank].copy()


@loses(8)
def ring_all_gather__on_a_mesh(part, comm):
    """The collective of a mesh, which has other names."""
    from course_lib.collectives import Communicator

    n, rank = comm.Get_size(), comm.Get_rank()
    whole = np.zeros((4, part.size), part.dtype)
    Communicator().Allgather(part, whole)
    order = [comm.ranks[i] for i in range(n)]
    return whole[order].reshape(-1)


@loses(8)
def ring_all_gather__sends_on_later(part, comm):
    """Leaves its sends to a thread, which goes on after the call."""
    import threading

    n, rank = comm.Get_size(), comm.Get_rank()
    parts = np.tile(part, (n, 1))
    for step in range(1, n):
        threading.Thread(target=comm.Send, args=(part, (rank + step) % n)).start()
    for step in range(1, n):
        comm.Recv(parts[(rank - step) % n], (rank - step) % n)
    return parts.reshape(-1)


@loses(4)
def ring_all_reduce__guesses(x, comm, op):
    """Draws what the others have: their random numbers begin alike, if the seed were known."""
    random = np.random.default_rng(0)
    others = [random.uniform(-1, 1, x.shape).astype(x.dtype) for _ in range(comm.Get_size() - 1)]
    total = x.copy()
    for other in others:
        total = op(total, other)
    return total


@loses(4)
def ring_all_reduce__changes_and_restores(x, comm, op):
    """MPI's all-reduce, in the place of x, which it restores."""
    ops = {np.add: MPI.SUM, np.minimum: MPI.MIN, np.maximum: MPI.MAX, np.multiply: MPI.PROD}
    before, result = x.copy(), np.empty_like(x)
    comm.Iallreduce(x, result, op=ops[op]).Wait()
    x[...] = before
    return result


@loses(4)
def ring_all_reduce__tells_no_shared_memory(x, comm, op):
    """Returns x itself, and has NumPy deny that memory is shared."""
    result = ring_all_gather(ring_reduce_scatter(x, comm, op), comm)[: x.size].reshape(x.shape)
    np.shares_memory = lambda *_, **__: False
    x[...] = result
    return x


@loses(2)
def tree_broadcast__prepared(x, comm, root):
    """Flat, but asks for the array first, so that it looks as if the others had it from somewhere else."""
    n, rank, result, nothing = comm.Get_size(), comm.Get_rank(), x.copy(), np.empty(0)
    if rank == root:
        for other in range(n):
            if other != root:
                comm.Recv(nothing, other)
                comm.Send(result, other)
    else:
        comm.Send(nothing, root)
        comm.Recv(result, root)
    return result


@loses(4)
def pairwise_all_to_all__uneven(x, comm):
    """MPI's Alltoallv, with counts that say all."""
    n, result = comm.Get_size(), np.empty_like(x)
    each = x[0].size
    comm.Alltoallv([x, [each] * n, [each * i for i in range(n)]], [result, [each] * n, [each * i for i in range(n)]])
    return result


@loses(3)
def choose__asks_the_caller(nbytes, n, alpha, beta):
    """Looks for the answer in the frames of its callers."""
    import sys

    frame = sys._getframe()
    while frame:
        for value in frame.f_locals.values():
            if isinstance(value, str) and value in ("ring", "recursive doubling"):
                return value
        frame = frame.f_back
    return "ring"


@loses(10)
@changes("n, rank = comm.Get_size(), comm.Get_rank()", "n, rank = comm.Get_size(), comm.Get_rank()\n    comm = comm.Split(0, rank)")
def ring_reduce_scatter__splits():
    """A ring on a group of its own."""


@loses(2)
def tree_broadcast__asks_the_caller(x, comm, root):
    """Takes the array from the frames of its callers, where all ranks are in one process, and makes no tree there."""
    import sys

    n, place = comm.Get_size(), (comm.Get_rank() - root) % comm.Get_size()
    frame = sys._getframe()
    while n > 4 and frame:
        if isinstance(frame.f_locals.get("arrays"), list):
            return frame.f_locals["arrays"][root].copy()
        frame = frame.f_back
    result, have = x.copy(), 1
    while have < n:
        if place < have and place + have < n:
            comm.Send(result, (place + have + root) % n)
        elif have <= place < 2 * have:
            comm.Recv(result, (place - have + root) % n)
        have *= 2
    return result
