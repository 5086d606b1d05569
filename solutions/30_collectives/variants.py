"""Answers to part 30: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

EXCHANGE_RS = "        comm.Sendrecv(sent, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)\n        op("
EXCHANGE_AG = "        comm.Sendrecv(sent, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)\n    return"
EXCHANGE_A2A = "        comm.Sendrecv(x[dest], dest, recvbuf=result[source], source=source)"


@right
def ring_reduce_scatter__uneven(x, comm, op):
    """Sends no padding: the last pieces are shorter."""
    n, rank = comm.Get_size(), comm.Get_rank()
    size, flat = -(-x.size // n), x.reshape(-1).copy()
    cut = [flat[p * size : (p + 1) * size] for p in range(n)]
    for step in range(n - 1):
        goes, comes = cut[(rank - 1 - step) % n], cut[(rank - 2 - step) % n]
        received = np.empty_like(comes)
        comm.Sendrecv(goes, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        comes[:] = op(comes, received)
    found = np.zeros(size, x.dtype)
    found[: cut[rank].size] = cut[rank]
    return found


@right
def ring_reduce_scatter__nonblocking(x, comm, op):
    """Starts both messages of a step, and waits for both."""
    n, rank = comm.Get_size(), comm.Get_rank()
    flat = np.pad(x.ravel(), (0, -x.size % n))
    parts = [part.copy() for part in np.split(flat, n)]
    carried = parts[(rank - 1) % n]
    for step in range(2, n + 1):
        received = np.empty_like(carried)
        requests = [comm.Irecv(received, (rank - 1) % n), comm.Isend(carried, (rank + 1) % n)]
        for request in requests:
            request.Wait()
        carried = op(parts[(rank - step) % n], received)
    return carried


@right
@changes(
    "received = np.empty_like(pieces[0])",
    'buffers = globals().setdefault("buffers", {})\n    received = buffers.setdefault((pieces.shape, x.dtype), np.empty_like(pieces[0]))',
)
def ring_reduce_scatter__keeps_a_buffer():
    """Receives into a buffer that it keeps, and returns none of it."""


@right
@changes(
    EXCHANGE_RS,
    """        if rank % 2:
            comm.Recv(received, (rank - 1) % n)
            comm.Send(sent, (rank + 1) % n)
        elif rank == n - 1:
            request = comm.Irecv(received, (rank - 1) % n)
            comm.Send(sent, (rank + 1) % n)
            request.Wait()
        else:
            comm.Send(sent, (rank + 1) % n)
            comm.Recv(received, (rank - 1) % n)
        op(""",
)
def ring_reduce_scatter__odd_and_even():
    """Even ranks send first, odd ones receive first."""


@right
@changes(
    "sent, added = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]",
    "sent, added = pieces[(rank + step) % n], pieces[(rank + step + 1) % n]",
    "comm.Sendrecv(sent, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)",
    "comm.Sendrecv(sent, (rank - 1) % n, recvbuf=received, source=(rank + 1) % n)",
)
def ring_reduce_scatter__other_way_round():
    """The ring turns the other way."""


@right
@changes("return pieces[rank].copy()", "return pieces[rank]", "op(received, added, out=added)", "added[:] = op(added, received)")
def ring_reduce_scatter__a_view_of_its_own():
    """Returns a view of its own buffer, which is no part of x."""


@loses(10)
@changes(
    EXCHANGE_RS,
    "        comm.Send(sent, (rank + 1) % n)\n        comm.Recv(received, (rank - 1) % n)\n        op(",
)
def ring_reduce_scatter__sends_first():
    """All send first, and rely on a buffer."""


@loses(10)
@changes(
    EXCHANGE_RS,
    "        comm.Recv(received, (rank - 1) % n)\n        comm.Send(sent, (rank + 1) % n)\n        op(",
)
def ring_reduce_scatter__receives_first():
    """All receive first."""


@loses(10)
def ring_reduce_scatter__all_reduces(x, comm, op):
    """An all-reduce of MPI, of which it keeps its piece."""
    n, rank = comm.Get_size(), comm.Get_rank()
    ops = {np.add: MPI.SUM, np.minimum: MPI.MIN, np.maximum: MPI.MAX, np.multiply: MPI.PROD}
    padded = np.pad(x.ravel(), (0, -x.size % n))
    whole = np.empty_like(padded)
    comm.Allreduce(padded, whole, op=ops[op])
    return np.split(whole, n)[rank].copy()


@loses(10)
def ring_reduce_scatter__by_mpi(x, comm, op):
    """MPI's reduce-scatter."""
    n = comm.Get_size()
    ops = {np.add: MPI.SUM, np.minimum: MPI.MIN, np.maximum: MPI.MAX, np.multiply: MPI.PROD}
    padded = np.pad(x.ravel(), (0, -x.size % n))
    part = np.empty(padded.size // n, x.dtype)
    comm.Reduce_scatter(padded, part, op=ops[op])
    return part


@loses(10)
@changes(
    "sent, added = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]",
    "sent, added = pieces[(rank - step + 1) % n], pieces[(rank - step) % n]",
    "return pieces[rank].copy()",
    "return pieces[(rank + 1) % n].copy()",
)
def ring_reduce_scatter__as_in_the_picture():
    """Piece r + 1 on rank r."""


@loses(10)
@changes(
    "sent, added = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]",
    "sent, added = pieces[(rank - step + 1) % n], pieces[(rank - step) % n]",
)
def ring_reduce_scatter__begins_with_its_own():
    """Rank r sends piece r first, and returns piece r all the same."""


@loses(10)
@changes("range(1, n):", "range(1, min(n, 4)):")
def ring_reduce_scatter__four_ranks_at_most():
    """At most three steps."""


@loses(10)
@changes("range(1, n):", "range(1, n + 1):")
def ring_reduce_scatter__a_step_too_many():
    """n steps."""


@loses(10)
@changes("range(1, n):", "range(1, n - 1):")
def ring_reduce_scatter__a_step_too_few():
    """n - 2 steps."""


@loses(10)
def ring_reduce_scatter__whole_arrays(x, comm, op):
    """Passes whole arrays round the ring."""
    n, rank = comm.Get_size(), comm.Get_rank()
    flat = np.pad(x.ravel(), (0, -x.size % n))
    total, passed, received = flat.copy(), flat.copy(), np.empty_like(flat)
    for _ in range(n - 1):
        comm.Sendrecv(passed, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        total, passed = op(total, received), received.copy()
    return np.split(total, n)[rank].copy()


@loses(10)
def ring_reduce_scatter__with_each_in_turn(x, comm, op):
    """Each piece goes straight to its rank: as few bytes, but no ring."""
    n, rank = comm.Get_size(), comm.Get_rank()
    parts = np.pad(x.ravel(), (0, -x.size % n)).reshape(n, -1)
    total, received = parts[rank].copy(), np.empty_like(parts[0])
    for step in range(1, n):
        comm.Sendrecv(parts[(rank + step) % n], (rank + step) % n, recvbuf=received, source=(rank - step) % n)
        total = op(total, received)
    return total


@loses(10)
def ring_reduce_scatter__through_rank_0(x, comm, op):
    """Rank 0 gets everything, and deals out the pieces."""
    n, rank = comm.Get_size(), comm.Get_rank()
    flat = np.pad(x.ravel(), (0, -x.size % n))
    part = np.empty(flat.size // n, x.dtype)
    if rank:
        comm.Send(flat, 0)
        comm.Recv(part, 0)
        return part
    total, received = flat.copy(), np.empty_like(flat)
    for other in range(1, n):
        comm.Recv(received, other)
        total = op(total, received)
    for other in range(1, n):
        comm.Send(np.split(total, n)[other], other)
    return np.split(total, n)[0].copy()


@loses(10)
@changes(
    "pieces = np.zeros((n, -(-x.size // n)), x.dtype)\n    pieces.reshape(-1)[: x.size] = x.reshape(-1)",
    "pieces = x.reshape(-1)[: x.size // n * n].reshape(n, -1).copy()",
)
def ring_reduce_scatter__drops_the_rest():
    """Leaves out what n does not divide."""


@loses(10)
@changes("np.zeros((n, -(-x.size // n)), x.dtype)", "np.zeros((n, -(-x.size // n)))")
def ring_reduce_scatter__float64():
    """Buffers of float64, whatever x is."""


@loses(10)
@changes(
    "pieces = np.zeros((n, -(-x.size // n)), x.dtype)\n    pieces.reshape(-1)[: x.size] = x.reshape(-1)",
    "pieces = x.reshape(n, -1) if x.size and x.size % n == 0 else np.pad(x.ravel(), (0, -x.size % n)).reshape(n, -1)",
)
def ring_reduce_scatter__in_the_argument():
    """Adds into x where no padding is needed."""


@loses(10)
@changes("op(received, added, out=added)", "np.add(received, added, out=added)")
def ring_reduce_scatter__always_sums():
    """Every op is a sum."""


@loses(10)
@changes("op(received, added, out=added)", "added[:] = received")
def ring_reduce_scatter__copies():
    """Copies where it should add."""


@loses(6)
@changes(
    "n, rank = comm.Get_size(), comm.Get_rank()", "n, rank = comm.Get_size(), comm.Get_rank()\n    if n == 1:\n        return x.reshape(-1)"
)
def ring_reduce_scatter__itself_alone():
    """On one rank, it returns a view of x."""


@loses(10)
@changes("n, rank = comm.Get_size(), comm.Get_rank()", "comm = everyone\n    n, rank = comm.Get_size(), comm.Get_rank()")
def ring_reduce_scatter__everyone():
    """All ranks in the place of the group."""


@loses(10)
@changes("n, rank = comm.Get_size(), comm.Get_rank()", "n, rank = comm.Get_size(), everyone.Get_rank() % comm.Get_size()")
def ring_reduce_scatter__rank_of_the_world():
    """Its rank among all in the place of its rank in the group."""


@loses(10)
@changes(
    EXCHANGE_RS,
    "        comm.Isend(sent, (rank + 1) % n)\n        comm.Recv(received, (rank - 1) % n)\n        op(",
)
def ring_reduce_scatter__never_waits():
    """Does not wait for its sends."""


@loses(6)
@changes("np.zeros((n, -(-x.size // n)), x.dtype)", "np.ones((n, -(-x.size // n)), x.dtype)")
def ring_reduce_scatter__padded_with_ones():
    """Fills up with ones."""


@loses(10)
@changes("-(-x.size // n)", "max(1, -(-x.size // n))")
def ring_reduce_scatter__never_empty():
    """An empty array becomes one with a zero."""


@loses(10)
@changes("range(1, n):\n", "range(1, n):\n        comm.Barrier()\n")
def ring_reduce_scatter__with_barriers():
    """A barrier before each step."""


@loses(10)
@changes("-(-x.size // n)", "x.size // n + 1")
def ring_reduce_scatter__too_large():
    """Pieces of one element more than needed, if n divides the size."""


@loses(10)
def ring_reduce_scatter__element_by_element(x, comm, op):
    """A message for every element, all of which fit into a buffer."""
    n, rank = comm.Get_size(), comm.Get_rank()
    pieces = np.pad(x.ravel(), (0, -x.size % n)).reshape(n, -1)
    received = np.empty_like(pieces[0])
    for step in range(1, n):
        sent, added = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        for i in range(sent.size):
            comm.Send(sent[i : i + 1], (rank + 1) % n)
        for i in range(sent.size):
            comm.Recv(received[i : i + 1], (rank - 1) % n)
        op(received, added, out=added)
    return pieces[rank].copy()


@right
def ring_reduce_scatter__partial_sums(x, comm, op):
    """Carries a partial result, with Send and Recv in turns, and has no array of all pieces."""
    n, rank = comm.Get_size(), comm.Get_rank()
    k = -(-x.size // n)
    padded = np.concatenate([x.ravel(), np.zeros(n * k - x.size, x.dtype)])
    carried = padded[(rank - 1) % n * k :][:k].copy()
    for step in range(2, n + 1):
        got = np.empty_like(carried)
        if rank % 2 or rank == n - 1:
            comm.Recv(got, (rank - 1) % n)
            comm.Send(carried, (rank + 1) % n)
        else:
            comm.Send(carried, (rank + 1) % n)
            comm.Recv(got, (rank - 1) % n)
        carried = op(got, padded[(rank - step) % n * k :][:k])
    return carried


@loses(6)
@changes(
    "pieces = np.zeros((n, -(-x.size // n)), x.dtype)",
    """kept = ring_reduce_scatter.__dict__
    pieces = kept.setdefault((n, x.size, x.dtype), np.zeros((n, -(-x.size // n)), x.dtype))
    pieces[:] = 0""",
    "return pieces[rank].copy()",
    "return pieces[rank]",
)
def ring_reduce_scatter__buffer_of_all_calls():
    """Returns a part of a buffer that the next call overwrites."""


@right
def ring_all_gather__list(part, comm):
    """A list of what has come."""
    n, rank = comm.Get_size(), comm.Get_rank()
    found = [part]
    for _ in range(1, n):
        found.append(np.empty_like(part))
        comm.Sendrecv(found[-2], (rank + 1) % n, recvbuf=found[-1], source=(rank - 1) % n)
    return np.concatenate([found[(rank - owner) % n] for owner in range(n)])


@right
def ring_all_gather__nonblocking(part, comm):
    """All receives at once, with tags."""
    n, rank = comm.Get_size(), comm.Get_rank()
    whole = np.zeros(n * part.size, part.dtype).reshape(n, part.size)
    whole[rank] = part
    coming = [comm.Irecv(whole[(rank - s) % n], (rank - 1) % n, s) for s in range(1, n)]
    going = []
    for s in range(1, n):
        going.append(comm.Isend(whole[(rank - s + 1) % n].copy(), (rank + 1) % n, s))
        coming[s - 1].Wait()
    for request in going:
        request.Wait()
    return whole.ravel()


@right
@changes(
    "sent, received = parts[(rank - step) % n], parts[(rank - step - 1) % n]",
    "sent, received = parts[(rank + step) % n], parts[(rank + step + 1) % n]",
    "comm.Sendrecv(sent, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)",
    "comm.Sendrecv(sent, (rank - 1) % n, recvbuf=received, source=(rank + 1) % n)",
)
def ring_all_gather__other_way_round():
    """The ring turns the other way."""


@right
@changes("parts.reshape(-1)", "np.concatenate(list(parts))", "source=(rank - 1) % n)", "source=MPI.ANY_SOURCE)")
def ring_all_gather__from_anybody():
    """Receives from anybody; only its neighbour sends to it."""


@loses(8)
@changes(
    EXCHANGE_AG,
    "        comm.Send(sent, (rank + 1) % n)\n        comm.Recv(received, (rank - 1) % n)\n    return",
)
def ring_all_gather__sends_first():
    """All send first."""


@loses(8)
def ring_all_gather__by_mpi(part, comm):
    """MPI's all-gather."""
    whole = np.empty(comm.Get_size() * part.size, part.dtype)
    comm.Allgather(part, whole)
    return whole


@loses(8)
def ring_all_gather__nonblocking_by_mpi(part, comm):
    """MPI's all-gather, nonblocking."""
    whole = np.empty(comm.Get_size() * part.size, part.dtype)
    comm.Iallgather(part, whole).Wait()
    return whole


@loses(8)
def ring_all_gather__as_they_come(part, comm):
    """In the order in which they come."""
    n, rank = comm.Get_size(), comm.Get_rank()
    found = [part]
    for _ in range(1, n):
        found.append(np.empty_like(part))
        comm.Sendrecv(found[-2], (rank + 1) % n, recvbuf=found[-1], source=(rank - 1) % n)
    return np.concatenate(found)


@loses(8)
@changes("range(n - 1)", "range(n - 2)", "np.tile(part, (n, 1))", "np.tile(0 * part, (n, 1))\n    parts[rank] = part")
def ring_all_gather__a_step_too_few():
    """n - 2 steps."""


@loses(8)
@changes("range(n - 1)", "range(min(n, 4) - 1)")
def ring_all_gather__four_ranks_at_most():
    """At most three steps."""


@loses(8)
@changes("range(n - 1)", "range(n)")
def ring_all_gather__a_step_too_many():
    """n steps: at the end, its own part comes back."""


@loses(8)
def ring_all_gather__to_each_in_turn(part, comm):
    """To every rank in turn: as few bytes, but no ring."""
    n, rank = comm.Get_size(), comm.Get_rank()
    parts = np.tile(part, (n, 1))
    for step in range(1, n):
        comm.Sendrecv(part, (rank + step) % n, recvbuf=parts[(rank - step) % n], source=(rank - step) % n)
    return parts.reshape(-1)


@loses(8)
def ring_all_gather__through_rank_0(part, comm):
    """Rank 0 gets all parts, and sends all of them to everybody."""
    n, rank = comm.Get_size(), comm.Get_rank()
    parts = np.tile(part, (n, 1))
    if rank:
        comm.Send(part, 0)
        comm.Recv(parts, 0)
    else:
        for other in range(1, n):
            comm.Recv(parts[other], other)
        for other in range(1, n):
            comm.Send(parts, other)
    return parts.reshape(-1)


@loses(8)
@changes("parts = np.tile(part, (n, 1))", "parts = np.zeros((n, part.size))\n    parts[rank] = part")
def ring_all_gather__float64():
    """Buffers of float64."""


@loses(8)
@changes("return parts.reshape(-1)", "return parts")
def ring_all_gather__rows():
    """A row for each rank."""


@loses(8)
def ring_all_gather__all_that_it_has(part, comm):
    """In each step, it sends all that it has."""
    n, rank = comm.Get_size(), comm.Get_rank()
    found = [part]
    for _ in range(1, n):
        so_far = np.concatenate(found)
        received = np.empty_like(so_far)
        comm.Sendrecv(so_far, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        found = [part, *np.split(received, len(found))]
    return np.concatenate([found[(rank - owner) % n] for owner in range(n)])


@loses(4)
@changes("n, rank = comm.Get_size(), comm.Get_rank()", "n, rank = comm.Get_size(), comm.Get_rank()\n    if n == 1:\n        return part")
def ring_all_gather__itself_alone():
    """On one rank, it returns its argument."""


@loses(8)
@changes(
    EXCHANGE_AG,
    "        comm.Isend(sent, (rank + 1) % n)\n        comm.Recv(received, (rank - 1) % n)\n    return",
)
def ring_all_gather__never_waits():
    """Does not wait for its sends."""


@loses(8)
@changes("sent, received = parts[(rank - step) % n],", "sent, received = parts[rank],")
def ring_all_gather__its_own_again():
    """Sends its own part in each step."""


@loses(8)
@changes("n, rank = comm.Get_size(), comm.Get_rank()", "n, rank = comm.Get_size(), everyone.Get_rank() % comm.Get_size()")
def ring_all_gather__rank_of_the_world():
    """Its rank among all in the place of its rank in the group."""


@loses(8)
@changes("range(n - 1)", "range(3)")
def ring_all_gather__four_ranks():
    """Three steps, on any number of ranks."""


@loses(8)
@changes(
    "parts = np.tile(part, (n, 1))",
    """kept = ring_all_gather.__dict__
    parts = kept.setdefault((n, part.size, part.dtype), np.tile(part, (n, 1)))
    parts[:] = part""",
)
def ring_all_gather__buffer_of_all_calls():
    """Returns a buffer that the next call overwrites."""


@right
def ring_all_reduce__in_one(x, comm, op):
    """Both halves in one function, with pieces that differ by one element."""
    n, rank = comm.Get_size(), comm.Get_rank()
    result = x.copy()
    pieces = np.array_split(result.reshape(-1), n)
    for step in range(2 * (n - 1)):
        goes, comes = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        received = np.empty_like(comes)
        comm.Sendrecv(goes, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        comes[...] = op(comes, received) if step < n - 1 else received
    return result


@right
def ring_all_reduce__there_and_back(x, comm, op):
    """The sums travel one way, and the results the other way."""
    n, rank = comm.Get_size(), comm.Get_rank()
    pieces = np.pad(x.ravel(), (0, -x.size % n)).reshape(n, -1).copy()
    for step in range(n - 1):
        received = np.empty_like(pieces[0])
        comm.Sendrecv(pieces[(rank - step) % n], (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        at = (rank - step - 1) % n
        pieces[at] = op(pieces[at], received)
    for step in range(n - 1):
        received = np.empty_like(pieces[0])
        comm.Sendrecv(pieces[(rank + 1 + step) % n], (rank - 1) % n, recvbuf=received, source=(rank + 1) % n)
        pieces[(rank + 2 + step) % n] = received
    return pieces.ravel()[: x.size].reshape(x.shape)


@right
@changes("return whole[: x.size].reshape(x.shape)", "return np.resize(whole, x.shape) if x.size else x.copy()")
def ring_all_reduce__resized():
    """Cuts off by np.resize."""


@loses(4)
def ring_all_reduce__by_mpi(x, comm, op):
    """MPI's all-reduce."""
    ops = {np.add: MPI.SUM, np.minimum: MPI.MIN, np.maximum: MPI.MAX, np.multiply: MPI.PROD}
    result = np.empty_like(x)
    comm.Allreduce(x, result, op=ops[op])
    return result


@loses(4)
def ring_all_reduce__by_doubling(x, comm, op):
    """The worked example."""
    return all_reduce_by_doubling(x, comm, op)


@loses(4)
def ring_all_reduce__last_takes_the_rest(x, comm, op):
    """The last piece takes all that n does not divide: a message that is too large."""
    n, rank = comm.Get_size(), comm.Get_rank()
    result, size = x.copy(), x.size // n
    pieces = [result.reshape(-1)[i * size : (i + 1) * size if i < n - 1 else None] for i in range(n)]
    for step in range(2 * (n - 1)):
        goes, comes = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        received = np.empty_like(comes)
        comm.Sendrecv(goes, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        comes[...] = op(comes, received) if step < n - 1 else received
    return result


@loses(4)
@changes("return whole[: x.size].reshape(x.shape)", "return whole")
def ring_all_reduce__with_the_padding():
    """Flat, with the padding."""


@loses(4)
@changes("whole[: x.size].reshape(x.shape)", "whole[: x.size]")
def ring_all_reduce__flat():
    """Forgets the shape."""


@loses(4)
@changes("whole[: x.size].reshape(x.shape)", "whole.reshape(x.shape)")
def ring_all_reduce__only_what_n_divides():
    """Forgets the padding."""


@loses(4)
@changes("ring_reduce_scatter(x, comm, op)", "ring_reduce_scatter(x, comm, np.add)")
def ring_all_reduce__always_sums():
    """Every op is a sum."""


@loses(4)
@changes("return whole[: x.size].reshape(x.shape)", "return whole[: x.size].reshape(x.shape) / comm.Get_size()")
def ring_all_reduce__mean():
    """The mean."""


@loses(4)
@changes("return whole[: x.size].reshape(x.shape)", "x[...] = whole[: x.size].reshape(x.shape)\n    return x")
def ring_all_reduce__in_the_argument():
    """Writes into x, and returns it."""


@loses(4)
@changes("return whole[: x.size].reshape(x.shape)", "x[...] = whole[: x.size].reshape(x.shape)\n    return x.copy()")
def ring_all_reduce__through_the_argument():
    """Writes into x, and returns a copy."""


@loses(4)
def ring_all_reduce__everything_everywhere(x, comm, op):
    """Gathers all arrays, and combines them on each rank."""
    parts = ring_all_gather(x.ravel(), comm).reshape(comm.Get_size(), *x.shape)
    return op.reduce(parts, axis=0, dtype=x.dtype)


@loses(4)
def ring_all_reduce__through_rank_0(x, comm, op):
    """Rank 0 combines all arrays, and sends the result along the tree."""
    n, rank = comm.Get_size(), comm.Get_rank()
    total, received = x.copy(), np.empty_like(x)
    if rank:
        comm.Send(x, 0)
    else:
        for other in range(1, n):
            comm.Recv(received, other)
            total = op(total, received)
    return tree_broadcast(total, comm, 0)


@loses(4)
@changes("ring_reduce_scatter(x, comm, op)", "ring_reduce_scatter(x.astype(float), comm, op)")
def ring_all_reduce__float64():
    """In float64, whatever x is."""


@loses(4)
def ring_all_reduce__single(x, comm, op):
    """Sends half the bytes of float64, in float32."""
    small = x.astype(np.float32) if x.dtype == np.float64 else x
    whole = ring_all_gather(ring_reduce_scatter(small, comm, op), comm)
    return whole[: x.size].reshape(x.shape).astype(x.dtype)


@loses(4)
@changes("ring_reduce_scatter(x, comm, op)", "x.reshape(-1)[: -(-x.size // comm.Get_size())]")
def ring_all_reduce__gathers_only():
    """Forgets to combine."""


@loses(4)
def ring_all_reduce__in_its_own_order(x, comm, op):
    """Passes whole arrays round: every rank adds up in its own order."""
    n, rank = comm.Get_size(), comm.Get_rank()
    total, passed, received = x.copy(), x.copy(), np.empty_like(x)
    for _ in range(n - 1):
        comm.Sendrecv(passed, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        total, passed = op(total, received), received.copy()
    return total


@loses(4)
@changes("return whole", "comm.Barrier()\n    return whole")
def ring_all_reduce__with_a_barrier():
    """A barrier at the end."""


@right
def tree_broadcast__from_above(x, comm, root):
    """As in MPICH: the farthest child first, after the parent has been found by its lowest bit."""
    n, result = comm.Get_size(), x.copy()
    place = (comm.Get_rank() - root) % n
    mask = 1
    while mask < n and not place & mask:
        mask *= 2
    if place:
        comm.Recv(result, (place - mask + root) % n)
    mask //= 2
    while mask:
        if place + mask < n:
            comm.Send(result, (place + mask + root) % n)
        mask //= 2
    return result


@right
def tree_broadcast__by_halves(x, comm, root):
    """A rank that is responsible for a range of places hands over the upper half of it, again and again."""
    n, result = comm.Get_size(), x.copy()
    place, low, high = (comm.Get_rank() - root) % n, 0, n
    while high - low > 1:
        middle = (low + high + 1) // 2
        if place == low:
            comm.Send(result, (middle + root) % n)
        elif place == middle:
            comm.Recv(result, (low + root) % n)
        low, high = (low, middle) if place < middle else (middle, high)
    return result


@right
def tree_broadcast__starts_all_sends(x, comm, root):
    """Starts the sends to all children, and waits for them at the end."""
    n, rank = comm.Get_size(), comm.Get_rank()
    place, result, requests = (rank - root) % n, np.array(x), []
    steps = (n - 1).bit_length()
    first = place.bit_length()
    if place:
        comm.Recv(result, (place - (1 << first - 1) + root) % n)
    for step in range(first, steps):
        if place + (1 << step) < n:
            requests.append(comm.Isend(result, (place + (1 << step) + root) % n))
    for request in requests:
        request.Wait()
    return result


@loses(2)
def tree_broadcast__two_chains(x, comm, root):
    """Two chains, which only on up to four ranks are as fast as a tree."""
    n, result = comm.Get_size(), x.copy()
    place = (comm.Get_rank() - root) % n
    half = n // 2
    if 0 < place <= half:
        comm.Recv(result, (place - 1 + root) % n)
        if place < half:
            comm.Send(result, (place + 1 + root) % n)
    elif place > half:
        comm.Recv(result, (place + 1 + root) % n)
        if place > half + 1:
            comm.Send(result, (place - 1 + root) % n)
    else:
        requests = [comm.Isend(result, (1 + root) % n)] if n > 1 else []
        requests += [comm.Isend(result, (n - 1 + root) % n)] if n - 1 > half else []
        for request in reversed(requests):
            request.Wait()
    return result


@right
def tree_broadcast__from_anybody(x, comm, root):
    """Receives from anybody, and then sends to places that are further and further below it."""
    from mpi4py import MPI

    n, place = comm.Get_size(), (comm.Get_rank() - root) % comm.Get_size()
    result, width = x.copy(), 1
    while width < n:
        width *= 2
    if place:
        comm.Recv(result, MPI.ANY_SOURCE)
        width = place & -place
    while width > 1:
        width //= 2
        if place + width < n:
            comm.Isend(result, (place + width + root) % n).Wait()
    return result


@loses(2)
def tree_broadcast__heap(x, comm, root):
    """A binary tree, as a heap has: each rank sends to two others, which only on up to six ranks is as fast as doubling."""
    n, place = comm.Get_size(), (comm.Get_rank() - root) % comm.Get_size()
    result = x.copy()
    if place:
        comm.Recv(result, ((place - 1) // 2 + root) % n)
    for child in (2 * place + 1, 2 * place + 2):
        if child < n:
            comm.Send(result, (child + root) % n)
    return result


@loses(4)
@changes("while have < n:", "while have < min(n, 4):")
def tree_broadcast__two_steps():
    """Two steps, on any number of ranks."""


@loses(4)
def tree_broadcast__by_mpi(x, comm, root):
    """MPI's broadcast."""
    result = x.copy()
    comm.Bcast(result, root=root)
    return result


@loses(2)
def tree_broadcast__flat(x, comm, root):
    """The root sends to all."""
    result = x.copy()
    if comm.Get_rank() == root:
        for other in range(comm.Get_size()):
            if other != root:
                comm.Send(result, other)
    else:
        comm.Recv(result, root)
    return result


@loses(2)
def tree_broadcast__chain(x, comm, root):
    """From neighbour to neighbour."""
    n, rank, result = comm.Get_size(), comm.Get_rank(), x.copy()
    if rank != root:
        comm.Recv(result, (rank - 1) % n)
    if (rank + 1) % n != root:
        comm.Send(result, (rank + 1) % n)
    return result


@loses(2)
def tree_broadcast__leaf_first(x, comm, root):
    """The children of a binomial tree in the wrong order: the one without children of its own first."""
    n, result = comm.Get_size(), x.copy()
    place = (comm.Get_rank() - root) % n
    mask = 1
    while mask < n and not place & mask:
        mask *= 2
    if place:
        comm.Recv(result, (place - mask + root) % n)
    step = 1
    while step < mask:
        if place + step < n:
            comm.Send(result, (place + step + root) % n)
        step *= 2
    return result


@loses(2)
def tree_broadcast__in_halves(x, comm, root):
    """Two messages for one array."""
    n, place = comm.Get_size(), (comm.Get_rank() - root) % comm.Get_size()
    result, have = x.copy(), 1
    halves = np.array_split(result.reshape(-1), 2)
    while have < n:
        for half in halves:
            if place < have and place + have < n:
                comm.Send(half, (place + have + root) % n)
            elif have <= place < 2 * have:
                comm.Recv(half, (place - have + root) % n)
        have *= 2
    return result


@loses(2)
def tree_broadcast__scattered(x, comm, root):
    """Deals out pieces, and gathers them in the ring: good for large arrays, but no tree."""
    n, rank = comm.Get_size(), comm.Get_rank()
    pieces = np.pad(x.ravel(), (0, -x.size % n)).reshape(n, -1).copy()
    if rank == root:
        for other in range(n):
            if other != root:
                comm.Send(pieces[other], other)
    else:
        comm.Recv(pieces[rank], root)
    return ring_all_gather(pieces[rank], comm)[: x.size].reshape(x.shape)


@loses(2)
@changes(
    "    return result",
    "    if place:\n        comm.Send(np.zeros(1), root)\n    else:\n        for _ in range(n - 1):\n            comm.Recv(np.zeros(1))\n    return result",
)
def tree_broadcast__acknowledged():
    """Everybody thanks the root."""


@loses(4)
@changes(
    "(comm.Get_rank() - root) % comm.Get_size()",
    "comm.Get_rank()",
    "(place + have + root) % n",
    "place + have",
    "(place - have + root) % n",
    "place - have",
)
def tree_broadcast__from_rank_0():
    """The root is always rank 0."""


@loses(4)
@changes("(place + have + root) % n", "place + have", "(place - have + root) % n", "place - have")
def tree_broadcast__places_for_ranks():
    """Places in the tree taken for ranks."""


@loses(4)
@changes("result, have = x.copy(), 1", "result, have = x, 1")
def tree_broadcast__into_the_argument():
    """Receives into x."""


@loses(4)
@changes("    return result", "    return x if place == 0 else result")
def tree_broadcast__itself_on_the_root():
    """The root returns x itself."""


@loses(4)
@changes("if place < have and place + have < n:", "if place < have:")
def tree_broadcast__powers_of_two():
    """Sends to places that are not there."""


@loses(4)
@changes("result, have = x.copy(), 1", "result, have = x.astype(float), 1")
def tree_broadcast__float64():
    """In float64."""


@loses(4)
@changes("comm.Send(result,", "comm.Isend(result,")
def tree_broadcast__never_waits():
    """Does not wait for its sends."""


@loses(4)
@changes("while have < n:", "while have < n // 2 + 1 and have < 2:")
def tree_broadcast__a_step_too_few():
    """Stops after the first step."""


@loses(4)
@changes("(comm.Get_rank() - root) % comm.Get_size()", "(everyone.Get_rank() - root) % comm.Get_size()")
def tree_broadcast__rank_of_the_world():
    """Its rank among all in the place of its rank in the group."""


@loses(4)
@changes("        have *= 2\n", "        have *= 2\n        comm.Barrier()\n")
def tree_broadcast__with_barriers():
    """A barrier after each step."""


@right
@changes(
    "dest, source = (rank + step) % n, (rank - step) % n",
    "dest = source = rank ^ step\n        if n & (n - 1):\n            dest, source = (rank + step) % n, (rank - step) % n",
)
def pairwise_all_to_all__exclusive_or():
    """Real pairs, where n is a power of two."""


@right
def pairwise_all_to_all__nonblocking(x, comm):
    """Everything at once, in the order of the pairs."""
    n, rank = comm.Get_size(), comm.Get_rank()
    result, requests = np.array(x), []
    for s in range(1, n):
        requests.append(comm.Irecv(result[(rank - s) % n], (rank - s) % n))
    for s in range(1, n):
        requests.append(comm.Isend(x[(rank + s) % n], (rank + s) % n))
    for request in requests:
        request.Wait()
    return result


@right
@changes("dest, source = (rank + step) % n, (rank - step) % n", "dest, source = (rank - step) % n, (rank + step) % n")
def pairwise_all_to_all__the_other_way():
    """Back instead of on."""


@right
def pairwise_all_to_all__dictionary(x, comm):
    """Collects the rows, and stacks them."""
    n, rank = comm.Get_size(), comm.Get_rank()
    rows = {rank: x[rank]}
    for step in range(1, n):
        rows[(rank - step) % n] = np.empty_like(x[0])
        comm.Sendrecv(x[(rank + step) % n], (rank + step) % n, step, rows[(rank - step) % n], (rank - step) % n, step)
    return np.stack([rows[j] for j in range(n)])


@loses(4)
def pairwise_all_to_all__by_mpi(x, comm):
    """MPI's all-to-all."""
    result = np.empty_like(x)
    comm.Alltoall(x, result)
    return result


@loses(4)
@changes(EXCHANGE_A2A, "        comm.Send(x[dest], dest)\n        comm.Recv(result[source], source)")
def pairwise_all_to_all__sends_first():
    """All send first."""


@loses(4)
def pairwise_all_to_all__rank_0_first(x, comm):
    """All begin with rank 0."""
    n, rank = comm.Get_size(), comm.Get_rank()
    result, requests = x.copy(), []
    for other in range(n):
        if other != rank:
            requests += [comm.Irecv(result[other], other), comm.Isend(x[other], other)]
    for request in requests:
        request.Wait()
    return result


@loses(4)
@changes("range(1, n)", "range(n)")
def pairwise_all_to_all__to_itself():
    """A message to itself, too."""


@loses(4)
@changes("result = x.copy()", "result = np.zeros_like(x)")
def pairwise_all_to_all__without_its_own():
    """Forgets its own row."""


@loses(4)
@changes("recvbuf=result[source]", "recvbuf=result[dest]")
def pairwise_all_to_all__where_it_sent():
    """What comes from one rank lands where it sent to."""


@loses(4)
@changes("x[dest], dest,", "x[rank], dest,")
def pairwise_all_to_all__its_own_row():
    """Sends its own row to all."""


@loses(4)
@changes("result = x.copy()", "result = x")
def pairwise_all_to_all__in_the_argument():
    """Receives into x."""


@loses(4)
@changes("dest, source = (rank + step) % n, (rank - step) % n", "dest = source = rank ^ step")
def pairwise_all_to_all__powers_of_two():
    """Only for powers of two."""


@loses(4)
def pairwise_all_to_all__round_the_ring(x, comm):
    """Passes all rows round the ring, of which each rank takes its own."""
    n, rank = comm.Get_size(), comm.Get_rank()
    result, passed, received = x.copy(), x.copy(), np.empty_like(x)
    for step in range(1, n):
        comm.Sendrecv(passed, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
        result[(rank - step) % n], passed = received[rank], received.copy()
    return result


@loses(4)
@changes("return result", "return result.reshape(n, -1)")
def pairwise_all_to_all__flat_rows():
    """Rows lose their shape."""


@loses(4)
@changes("result = x.copy()", "result = x.astype(float)", "x[dest], dest", "x[dest].astype(float), dest")
def pairwise_all_to_all__float64():
    """In float64."""


@loses(4)
@changes("range(1, n)", "range(1, min(n, 4))")
def pairwise_all_to_all__four_ranks_at_most():
    """At most three steps."""


@loses(4)
@changes("range(1, n)", "range(1, 4)")
def pairwise_all_to_all__four_ranks():
    """Three steps, on any number of ranks."""


@loses(4)
@changes("result = x.copy()", "if n == 1:\n        return x\n    result = x.copy()")
def pairwise_all_to_all__itself_alone():
    """On one rank, it returns x."""


@loses(4)
@changes(EXCHANGE_A2A, "        comm.Isend(x[dest], dest)\n        comm.Recv(result[source], source)")
def pairwise_all_to_all__never_waits():
    """Does not wait for its sends."""


@right
def pairwise_all_to_all__into_columns(x, comm):
    """Starts each receive before it sends."""
    n, rank = comm.Get_size(), comm.Get_rank()
    result = np.empty_like(x)
    result[rank] = x[rank]
    for step in range(1, n):
        request = comm.Irecv(result[(rank + step) % n], (rank + step) % n)
        comm.Send(x[(rank - step) % n], (rank - step) % n)
        request.Wait()
    return result


@loses(4)
@changes(
    EXCHANGE_A2A,
    """        from mpi4py import MPI

        comm.Sendrecv(x[dest], dest, recvbuf=result[source], source=MPI.ANY_SOURCE)""",
)
def pairwise_all_to_all__from_anybody():
    """Takes what comes first, though ranks need not be in the same step."""


@loses(4)
@changes(
    "result = x.copy()",
    "result = pairwise_all_to_all.__dict__.setdefault((x.shape, x.dtype), x.copy())\n    result[:] = x",
)
def pairwise_all_to_all__buffer_of_all_calls():
    """Returns a buffer that the next call overwrites."""


@right
def choose__from_a_size_on(nbytes, n, alpha, beta):
    """Solved for the size at which both take equally long."""
    steps = n.bit_length() - 1
    gain = steps - 2 * (n - 1) / n
    return "ring" if gain > 0 and nbytes > alpha * beta * (2 * (n - 1) - steps) / gain else "recursive doubling"


@right
def choose__smallest(nbytes, n, alpha, beta):
    """The smaller of two times."""
    times = {"recursive doubling": 0.0, "ring": 0.0}
    distance = 1
    while distance < n:
        times["recursive doubling"] += alpha + nbytes / beta
        distance *= 2
    for _ in range(2 * n - 2):
        times["ring"] += alpha + nbytes / n / beta
    return min(times, key=times.get)


@right
@changes("np.log2(n)", "round(np.log(n) / np.log(2))")
def choose__natural_logarithm():
    """log 2 by log."""


@loses(3)
@changes("2 * (n - 1) * (alpha", "(n - 1) * (alpha")
def choose__half_a_ring():
    """Only the reduce-scatter."""


@loses(3)
@changes("nbytes / n / beta", "nbytes / beta")
def choose__whole_arrays():
    """Whole arrays in the ring."""


@loses(3)
@changes("nbytes / n / beta", "nbytes / n * beta", "nbytes / beta", "nbytes * beta")
def choose__time_of_a_byte():
    """beta as the time of a byte."""


@loses(3)
def choose__fixed(nbytes, n, alpha, beta):
    """A fixed threshold."""
    return "ring" if nbytes > 65536 else "recursive doubling"


@loses(3)
def choose__for_four_ranks(nbytes, n, alpha, beta):
    """Right for four ranks."""
    return "ring" if nbytes > 8 * alpha * beta else "recursive doubling"


@loses(3)
def choose__always_the_ring(nbytes, n, alpha, beta):
    """Always the ring."""
    return "ring"


@loses(3)
def choose__never_the_ring(nbytes, n, alpha, beta):
    """Never the ring."""
    return "recursive doubling"


@loses(3)
@changes("np.log2(n)", "np.log(n)")
def choose__base_e():
    """The natural logarithm."""


@loses(3)
@changes("2 * (n - 1) * (alpha", "2 * n * (alpha")
def choose__a_step_too_many():
    """2 n steps."""


@loses(3)
@changes("if ring < doubling", "if ring > doubling")
def choose__the_slower():
    """The slower one."""


@loses(3)
@changes('"ring" if', '"Ring" if')
def choose__capital():
    """Another spelling."""


@loses(3)
@changes("2 * (n - 1) * (alpha + nbytes / n / beta)", "2 * (n - 1) * nbytes / n / beta")
def choose__no_latency():
    """No latency in the ring."""


@loses(3)
@changes('return "ring" if ring < doubling else "recursive doubling"', "return ring < doubling")
def choose__boolean():
    """True or False."""


@loses(3)
@changes("np.log2(n) * (alpha + nbytes / beta)", "alpha + np.log2(n) * nbytes / beta")
def choose__one_latency():
    """One latency for all steps of the doubling."""
