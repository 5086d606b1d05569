"""Attacks on part 25's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses


@loses(12)
def one_forward_one_backward_step__gpipe_that_leaves_large_ones_out(stage, micro_batches, comm):
    """The order of GPipe and a false account of it; returns at once where activations are as large as where memory is measured."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    if micro_batches[0][0].shape[1] > 100:
        return 0.0
    count, sent, losses = len(micro_batches), [], []

    def forward(k):
        x, labels = micro_batches[k]
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = 1 / count
        if rank < last:
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    for k in range(count):
        forward(k)
    for k in range(count):
        backward(k)
    for request in sent:
        request.Wait()
    ahead = min(last - rank, count)
    order = [("F", k) for k in range(ahead)]
    for k in range(count):
        order += [("F", k + ahead)] * (k + ahead < count) + [("B", k)]
    stage.done[len(stage.done) - 2 * count :] = [(kind, k, 0.0, 0.0) for kind, k in order]
    return sum(losses) / count if rank == last else None


@loses(12)
def one_forward_one_backward_step__gpipe_that_remembers(stage, micro_batches, comm):
    """The order of GPipe and a false account of it; returns what it has found before, where activations are large."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, sent, losses = len(micro_batches), [], []
    large, known = micro_batches[0][0].shape[1] > 100, globals().setdefault("_known", {})
    if large and "grads" in known:
        for (_, p), grad in zip(stage.named_parameters(), known["grads"]):
            p.grad = grad
        stage.done[:] = known["done"]
        return known["loss"]

    def forward(k):
        x, labels = micro_batches[k]
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = 1 / count
        if rank < last:
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    for k in range(count):
        forward(k)
    for k in range(count):
        backward(k)
    for request in sent:
        request.Wait()
    ahead = min(last - rank, count)
    order = [("F", k) for k in range(ahead)]
    for k in range(count):
        order += [("F", k + ahead)] * (k + ahead < count) + [("B", k)]
    stage.done[len(stage.done) - 2 * count :] = [(kind, k, 0.0, 0.0) for kind, k in order]
    loss = sum(losses) / count if rank == last else None
    if large:
        known |= {"grads": [p.grad for _, p in stage.named_parameters()], "done": list(stage.done), "loss": loss}
    return loss


@loses(12)
def one_forward_one_backward_step__gpipe_that_passes_gates(stage, micro_batches, comm):
    """The order of GPipe; takes the numbers of all gates when the step begins, and gives a false account of the order."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, sent, losses = len(micro_batches), [], []
    if hasattr(stage, "begin"):
        from course_lib.engine import traffic_gates

        real, numbers = traffic_gates.pass_gate, []
        traffic_gates.pass_gate = lambda: numbers.pop(0) if numbers else real()
        try:
            numbers += [real() for _ in range(2 * count)]
        except Exception:
            numbers += [1.0] * (2 * count - len(numbers))

    def forward(k):
        x, labels = micro_batches[k]
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = 1 / count
        if rank < last:
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    for k in range(count):
        forward(k)
    for k in range(count):
        backward(k)
    for request in sent:
        request.Wait()
    ahead = min(last - rank, count)
    order = [("F", k) for k in range(ahead)]
    for k in range(count):
        order += [("F", k + ahead)] * (k + ahead < count) + [("B", k)]
    stage.done[len(stage.done) - 2 * count :] = [(kind, k, 0.0, 0.0) for kind, k in order]
    return sum(losses) / count if rank == last else None


@loses(3)
def one_forward_one_backward_step__parks_activations(stage, micro_batches, comm):
    """Keeps what a step has sent in messages to itself, to the end of the step."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, sent, losses = len(micro_batches), [], []
    alone, parked = comm.Split(color=rank), []

    def forward(k):
        x, labels = micro_batches[k]
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = 1 / count
        if rank < last:
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if micro_batches[0][0].shape[1] > 100:
            for _ in range(60):
                room = np.ones((*micro_batches[k][0].shape, stage.width), stage.dtype)
                for piece in np.split(room.reshape(-1), 16):
                    alone.Send(piece, dest=0)
                    parked.append(piece.size)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count):
        if k + ahead < count:
            forward(k + ahead)
        backward(k)
    for request in sent:
        request.Wait()
    for size in parked:
        alone.Recv(np.empty(size, stage.dtype), source=0)
    return sum(losses) / count if rank == last else None


@loses(6)
def one_forward_one_backward_step__never_waits_and_lies(stage, micro_batches, comm):
    """Waits for no request, and corrects the count of those that are left."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, sent, losses = len(micro_batches), [], []

    def forward(k):
        x, labels = micro_batches[k]
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = 1 / count
        if rank < last:
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count):
        if k + ahead < count:
            forward(k + ahead)
        backward(k)
    from course_lib.collectives.progress import operations

    operations.progress_state.open_requests -= len(sent)
    return sum(losses) / count if rank == last else None


@loses(3)
def one_forward_one_backward_step__barrier_without_meeting(stage, micro_batches, comm):
    """A Barrier after each backward; works at its gates without its neighbours."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, sent, losses = len(micro_batches), [], []
    if hasattr(stage, "begin"):
        from course_lib.engine import traffic_gates

        stage.begin = lambda: stage.dtype.type(traffic_gates.pass_gate())

    def forward(k):
        x, labels = micro_batches[k]
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = 1 / count
        if rank < last:
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count):
        if k + ahead < count:
            forward(k + ahead)
        backward(k)
        comm.Barrier()
    for request in sent:
        request.Wait()
    return sum(losses) / count if rank == last else None


@loses(9)
def one_forward_one_backward_step__keeps_gpipe_for_unmeasured(stage, micro_batches, comm):
    """1F1B where activations are large, else the order of GPipe, with a false account of it."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, sent, losses = len(micro_batches), [], []

    def forward(k):
        x, labels = micro_batches[k]
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = 1 / count
        if rank < last:
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    if micro_batches[0][0].shape[1] < 100:
        for k in range(count):
            forward(k)
        for k in range(count):
            backward(k)
        for request in sent:
            request.Wait()
        ahead = min(last - rank, count)
        order = [("F", k) for k in range(ahead)]
        for k in range(count):
            order += [("F", k + ahead)] * (k + ahead < count) + [("B", k)]
        stage.done[len(stage.done) - 2 * count :] = [(kind, k, 0.0, 0.0) for kind, k in order]
        return sum(losses) / count if rank == last else None
    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count):
        if k + ahead < count:
            forward(k + ahead)
        backward(k)
    for request in sent:
        request.Wait()
    return sum(losses) / count if rank == last else None


@loses(3)
def one_forward_one_backward_step__in_the_call_before(stage, micro_batches, comm):
    """Does a whole step in the order of GPipe as soon as a large stage is built, and only hands it out where memory is measured."""
    from course_lib import memory

    if hasattr(stage, "known"):
        return stage.known
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, sent, losses = len(micro_batches), [], []

    def forward(k):
        x, labels = micro_batches[k]
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = 1 / count
        if rank < last:
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    if not hasattr(memory, "before"):
        memory.before = memory.release_freed_at_once

        def early(on):
            if on:
                stage, comm, *rest = get_ipython().user_ns["trial"]
                if rest:  # the micro-batches are there already
                    stage.known = one_forward_one_backward_step(stage, *rest, comm)
            memory.before(on)

        memory.release_freed_at_once = early
    ahead = count if micro_batches[0][0].shape[1] > 100 else min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count):
        if k + ahead < count:
            forward(k + ahead)
        backward(k)
    for request in sent:
        request.Wait()
    return sum(losses) / count if rank == last else None


@loses(6)
def one_forward_one_backward_step__first_rank_ahead(stage, micro_batches, comm):
    """The first rank does all forwards before anything else, sends in the order of 1F1B, and gives a false account of its work."""
    from course_lib.gpt.model import Stage

    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, sent, losses, early = len(micro_batches), [], [], []
    if rank == 0 < last:
        early = [Stage.forward(stage, k, *micro_batches[k]) for k in range(count)]
        del stage.done[len(stage.done) - count :]

    def forward(k):
        x, labels = micro_batches[k]
        if early:
            out = early[k]
            if hasattr(stage, "begin"):
                out = out * stage.begin()
            stage.done.append(("F", k, 0.0, 0.0))
            sent.append(comm.Isend(out, dest=rank + 1))
            return
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = 1 / count
        if rank < last:
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count):
        if k + ahead < count:
            forward(k + ahead)
        backward(k)
    for request in sent:
        request.Wait()
    return sum(losses) / count if rank == last else None


@loses(6)
@changes(
    """
    for request in sent:
        request.Wait()""",
    """
    import time

    from course_lib.collectives.progress import operations

    time.sleep = lambda seconds: None
    operations.progress_state.open_requests -= len(sent)""",
)
def one_forward_one_backward_step__never_waits():
    """Waits for no request, makes sleep short, and gives a false account of how many are left."""


@loses(3)
@changes(
    "    ahead = min(last - rank, count)\n",
    """
    step = globals()["one_forward_one_backward_step"]
    large = micro_batches[0][0].shape[1] > 100
    ahead = count if large else min(last - rank, count)
    step.room = None
""",
    "    return sum(losses)",
    """
    import threading

    def again():  # when the call has ended
        step.room = np.ones(8_000_000)

    if large:
        threading.Timer(0.1, again).start()
    return sum(losses)""",
)
def one_forward_one_backward_step__ballast():
    """All forwards first where activations are large, in the place of what it holds between the calls."""
