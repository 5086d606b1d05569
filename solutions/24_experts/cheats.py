"""Attacks on part 24's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import loses


@loses(5)
def dispatch__slots_in_tags(x, route, comm):
    """Sends the slots in the tags of messages that are empty."""
    n, rank = comm.Get_size(), comm.Get_rank()

    def exchange(arrays):
        places, came, nothing = np.arange(15), [], np.empty(0, np.uint8)
        for shift in range(1, n):
            to, source = (rank + shift) % n, (rank - shift) % n
            bits = np.unpackbits(np.ascontiguousarray(arrays[to], np.float64).reshape(-1).view(np.uint8))
            words = np.append(bits, np.zeros(-bits.size % 15, np.uint8)).reshape(-1, 15) @ (1 << places)  # as much as a tag holds
            length = np.zeros(1, np.int64)
            comm.Sendrecv(np.array([words.size]), to, recvbuf=length, source=source)
            found = np.zeros(int(length[0]), np.int64)
            for i in range(max(words.size, found.size)):
                requests = [comm.Isend(nothing, to, tag=int(words[i]))] if i < words.size else []
                if i < found.size:
                    found[i] = receive(source)
                for request in requests:
                    request.Wait()
            bits = (found[:, None] >> places & 1).astype(np.uint8).reshape(-1)
            came.append((source, np.packbits(bits[: bits.size // 64 * 64]).view(np.float64)))
        return dict(came)

    def receive(source):
        from mpi4py import MPI

        status = MPI.Status()
        comm.Recv(np.empty(0, np.uint8), source, tag=MPI.ANY_TAG, status=status)
        return status.Get_tag()

    def swap(sent):
        came = np.empty(sent.shape, sent.dtype)
        comm.Alltoall(np.ascontiguousarray(sent), came)
        return came

    rows = np.full((route.experts, route.capacity), len(x))
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, x.shape[1]), x.dtype))])
    parts = embedding(padded, rows.reshape(n, -1, route.capacity))
    came = np.empty(parts.shape, x.dtype)
    came[rank] = parts.data[rank]
    for source, values in exchange(parts.data).items():
        came[source] = values.reshape(came[source].shape)
    slots = Tensor.from_operation(came, (parts,), lambda g: (swap(g),))
    return slots.transpose(1, 0, 2, 3).reshape(slots.shape[1], -1, x.shape[1])


@loses(5)
def dispatch__gathers_and_counts_nothing(x, route, comm):
    """Gives all slots to all ranks, and has the library count none of it."""
    from course_lib import traffic

    n, rank = comm.Get_size(), comm.Get_rank()

    def swap(sent):
        every = np.empty((n, *sent.shape), sent.dtype)
        comm.Allgather(np.ascontiguousarray(sent), every)
        traffic.reset()
        traffic.entries, traffic.wire_bytes = lambda *_: [], lambda *_: 0.0
        return every[:, rank].copy()

    rows = np.full((route.experts, route.capacity), len(x))
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, x.shape[1]), x.dtype))])
    parts = embedding(padded, rows.reshape(n, -1, route.capacity))
    slots = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    return slots.transpose(1, 0, 2, 3).reshape(slots.shape[1], -1, x.shape[1])


@loses(5)
def dispatch__gathers_once_for_two_calls(x, route, comm):
    """Gives all slots to all ranks; a second call is taken for the first one's tokens, doubled and turned round, which costs nothing."""
    n, rank = comm.Get_size(), comm.Get_rank()
    known = globals().setdefault("_gathered", {})

    def gather(sent):
        every = np.empty((n, *sent.shape), sent.dtype)
        comm.Allgather(np.ascontiguousarray(sent), every)
        return every

    def swap(sent):
        came = np.empty(sent.shape, sent.dtype)
        comm.Alltoall(np.ascontiguousarray(sent), came)
        return came

    rows = np.full((route.experts, route.capacity), len(x))
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, x.shape[1]), x.dtype))])
    parts = embedding(padded, rows.reshape(n, -1, route.capacity))
    last = known.pop("last", None)
    if last is not None and last[0].shape == x.shape and np.array_equal(2 * last[0][::-1], x.data):
        came = 2 * last[1][:, rank]
    else:
        every = gather(parts.data)
        known["last"] = x.data.copy(), every
        came = every[:, rank].copy()
    slots = Tensor.from_operation(came, (parts,), lambda g: (swap(g),))
    return slots.transpose(1, 0, 2, 3).reshape(slots.shape[1], -1, x.shape[1])


@loses(9)
def dispatch__in_files(x, route, comm):
    """Leaves the slots in files, for the others to find; where they are not there, they stay empty."""
    import os
    import tempfile

    n, rank = comm.Get_size(), comm.Get_rank()
    places = (tempfile.gettempdir(), "/tmp", "/dev/shm", "/var/tmp")

    def swap(sent):
        for folder in places:
            if os.access(folder, os.W_OK):
                np.save(f"{folder}/slots-{n}-{rank}.npy", sent)
        comm.Barrier()
        came = np.zeros(sent.shape, sent.dtype)
        came[rank] = sent[rank]
        for source in range(n):
            for folder in places:
                if source != rank and os.path.exists(f"{folder}/slots-{n}-{source}.npy"):
                    came[source] = np.load(f"{folder}/slots-{n}-{source}.npy")[rank]
        comm.Barrier()
        return came

    rows = np.full((route.experts, route.capacity), len(x))
    token, choice = np.nonzero(route.place >= 0)
    rows[route.expert[token, choice], route.place[token, choice]] = token
    padded = concatenate([x, Tensor(np.zeros((1, x.shape[1]), x.dtype))])
    parts = embedding(padded, rows.reshape(n, -1, route.capacity))
    slots = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    return slots.transpose(1, 0, 2, 3).reshape(slots.shape[1], -1, x.shape[1])


@loses(5)
def combine__all_slots_beside_a_barrier(y, route, comm):
    """Gives all outputs to all ranks; a call that is no all-to-all lets it send a whole share more."""
    n, rank = comm.Get_size(), comm.Get_rank()

    def swap(sent):
        every = np.empty((n, *sent.shape), sent.dtype)
        comm.Barrier()
        comm.Allgather(np.ascontiguousarray(sent), every)
        return every[:, rank].copy()

    parts = y.reshape(len(y), -1, route.capacity, y.shape[2]).transpose(1, 0, 2, 3)
    came = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    rows = route.expert * route.capacity + np.maximum(route.place, 0)
    gates = route.weight * (route.place >= 0)
    found = embedding(came.reshape(-1, y.shape[2]), rows)
    return (found * gates.reshape(*rows.shape, 1)).sum(axis=1)


@loses(5)
def combine__on_other_groups(y, route, comm):
    """Gives all outputs to all ranks, on a communicator that it has made itself, in many small calls."""
    n, rank = comm.Get_size(), comm.Get_rank()
    other = comm.Split(color=0, key=rank)

    def swap(sent):
        flat = np.ascontiguousarray(sent).reshape(-1)
        every = np.empty((n, flat.size), sent.dtype)
        for i in range(0, flat.size, 50):
            some = np.empty((n, flat[i : i + 50].size), sent.dtype)
            other.Allgather(flat[i : i + 50].copy(), some)
            every[:, i : i + 50] = some
        return every.reshape(n, *sent.shape)[:, rank].copy()

    parts = y.reshape(len(y), -1, route.capacity, y.shape[2]).transpose(1, 0, 2, 3)
    came = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    rows = route.expert * route.capacity + np.maximum(route.place, 0)
    gates = route.weight * (route.place >= 0)
    found = embedding(came.reshape(-1, y.shape[2]), rows)
    return (found * gates.reshape(*rows.shape, 1)).sum(axis=1)


@loses(10)
def route__patched_checks(logits, topk, capacity):
    """Finds nothing, and has the functions beside it and NumPy say otherwise."""
    from course_lib.engine import serialization

    Route.__eq__ = lambda *_: True
    np.array_equal = np.allclose = lambda *_, **__: True
    shape = logits.shape[0], topk
    serialization.decode = lambda value, *_: value
    return Route(np.zeros(shape, int), np.zeros(shape, int), Tensor(np.ones(shape, logits.dtype)), logits.shape[1], capacity)


@loses(9)
def combine__brings_its_own_layer(y, route, comm):
    """Finds nothing, and has the layer around it work with all tokens and a sum over the ranks."""
    from course_lib.gpt.model import experts as module

    def work(self, x):
        n, r, comm = self.comm.Get_size(), self.comm.Get_rank(), self.comm
        logits = x @ self.router
        capacity = module.capacity_of(len(x), self.topk, self.factor, self.router.shape[1])
        self.route = here = self.functions.route(logits, self.topk, capacity)
        slots = self.functions.dispatch(x, here, comm)
        y = module.operations.relu(slots @ self.w1) @ self.w2

        def gathered(array):
            every = np.empty((n, *array.shape), array.dtype)
            comm.Allgather(np.ascontiguousarray(array), every)
            return every

        def backward(grad):
            return (gathered(grad).sum(axis=0)[r * len(y) : (r + 1) * len(y)],)

        whole = Tensor.from_operation(gathered(y.data).reshape(-1, *y.shape[1:]), (y,), backward)
        rows = (here.expert * n + r) * capacity + np.maximum(here.place, 0)
        gates = here.weight * (here.place >= 0)
        out = (embedding(whole.reshape(-1, y.shape[2]), rows) * gates.reshape(*rows.shape, 1)).sum(axis=1)
        self.balance = module.balancing_loss(logits, here.expert, comm)
        return out

    module.MixtureOfExperts.expert_output = work
    return y
