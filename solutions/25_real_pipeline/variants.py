"""Answers to part 25: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right


@loses(8)
@changes("grad = share", "grad = 1.0")
def gpipe_step__not_divided():
    """The gradients of the sum over the micro-batches."""


@loses(8)
@changes(
    "            comm.Recv(grad, source=rank + 1)",
    """
            comm.Recv(grad, source=rank + 1)
            grad *= share""",
)
def gpipe_step__divided_on_every_rank():
    """Divides on each rank."""


@loses(6)
@changes("loss += share * out", "loss = out")
def gpipe_step__last_loss():
    """Returns the last loss."""


@loses(8)
@changes("for k, (x, _) in enumerate(micro_batches):", "for k, (x, _) in list(enumerate(micro_batches))[:-1]:")
def gpipe_step__one_too_few():
    """Leaves out the last micro-batch on the way back."""


@loses(8)
def gpipe_step__one_after_the_other(stage, micro_batches, comm):
    """Each micro-batch forward and backward before the next."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    share, loss = 1 / len(micro_batches), 0.0
    for k, (tokens, labels) in enumerate(micro_batches):
        x = tokens
        if rank > 0:
            x = stage.buffer(tokens)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        grad = share
        if rank < last:
            comm.Send(out, dest=rank + 1)
            grad = stage.buffer(tokens)
            comm.Recv(grad, source=rank + 1)
        else:
            loss += share * out
        back = stage.backward(k, grad)
        if rank > 0:
            comm.Send(back, dest=rank - 1)
    return loss if rank == last else None


@loses(8)
def gpipe_step__one_forward_one_backward(stage, micro_batches, comm):
    """In the other order."""
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
    for request in sent:
        request.Wait()
    return sum(losses) / count if rank == last else None


@loses(8)
@changes("rank, last = comm.Get_rank(), comm.Get_size() - 1", "rank, last = everyone.Get_rank(), comm.Get_size() - 1")
def gpipe_step__world_ranks():
    """Takes its rank among all for that in the group."""


@right
@changes(
    "    for k, (x, labels) in enumerate(micro_batches):",
    """
    room = stage.buffer(micro_batches[0][0])
    for k, (x, labels) in enumerate(micro_batches):""",
    "x = stage.buffer(x)",
    "x = room",
)
def gpipe_step__one_buffer():
    """Receives into one array: no layer needs its input for the way back."""


@loses(6)
@changes(
    "    return loss if rank == last else None",
    """
    for _, p in stage.named_parameters():
        p.data = p.data - 0.1 * p.grad.astype(p.dtype)
    return loss if rank == last else None""",
)
def gpipe_step__trains():
    """Takes a step as well."""


@loses(8)
@changes(
    "            comm.Recv(x, source=rank - 1)",
    """
            comm.Recv(x, source=rank - 1)
            comm.Recv(x, source=rank - 1)""",
    "            comm.Send(out, dest=rank + 1)",
    """
            comm.Send(out, dest=rank + 1)
            comm.Send(out, dest=rank + 1)""",
)
def gpipe_step__sends_twice():
    """Sends each activation twice."""


@right
@changes("for k, (x, _) in enumerate(micro_batches):", "for k, (x, _) in reversed(list(enumerate(micro_batches))):")
def gpipe_step__backward_in_reverse():
    """The last micro-batch goes backward first, on all ranks."""


@right
@changes(
    "    share, loss = 1 / len(micro_batches), 0.0",
    """
    waiting = []
    share, loss = 1 / len(micro_batches), 0.0""",
    "comm.Send(out, dest=rank + 1)",
    "waiting.append(comm.Isend(out, rank + 1))",
    "            comm.Send(back, dest=rank - 1)",
    """
            waiting.append(comm.Isend(back, rank - 1))
    [request.Wait() for request in waiting]""",
)
def gpipe_step__isend():
    """With requests."""


@right
def gpipe_step__receives_begun_early(stage, micro_batches, comm):
    """All receives are begun before they are needed."""
    rank, last, m = comm.Get_rank(), comm.Get_size() - 1, len(micro_batches)
    xs, grads = ([stage.buffer(t) for t, _ in micro_batches] for _ in "xg")
    up = [comm.Irecv(x, source=rank - 1) for x in xs] if rank else []
    down = [comm.Irecv(g, source=rank + 1) for g in grads] if rank < last else []
    losses, out = [], []
    for k, (tokens, labels) in enumerate(micro_batches):
        if rank:
            up[k].Wait()
        result = stage.forward(k, xs[k] if rank else tokens, labels)
        if rank < last:
            out.append(comm.Isend(np.ascontiguousarray(result), dest=rank + 1))
        else:
            losses.append(result)
    for k in range(m):
        if rank < last:
            down[k].Wait()
        back = stage.backward(k, grads[k] if rank < last else np.float64(1) / m)
        if rank:
            out.append(comm.Isend(back, dest=rank - 1))
    for request in out:
        request.Wait()
    return np.mean(losses) if losses else 0.0


@loses(12)
@changes("grad = 1 / count", "grad = 1.0")
def one_forward_one_backward_step__not_divided():
    """The gradients of the sum."""


@loses(12)
def one_forward_one_backward_step__gpipe(stage, micro_batches, comm):
    """In the order of GPipe."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    share, loss = 1 / len(micro_batches), 0.0
    for k, (x, labels) in enumerate(micro_batches):
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            comm.Send(out, dest=rank + 1)
        else:
            loss += share * out
    for k, (x, _) in enumerate(micro_batches):
        grad = share
        if rank < last:
            grad = stage.buffer(x)
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            comm.Send(back, dest=rank - 1)
    return loss if rank == last else None


@loses(12)
def one_forward_one_backward_step__gpipe_that_lies(stage, micro_batches, comm):
    """In the order of GPipe, and its stage says otherwise."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    share, loss = 1 / len(micro_batches), 0.0
    for k, (x, labels) in enumerate(micro_batches):
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            comm.Send(out, dest=rank + 1)
        else:
            loss += share * out
    for k, (x, _) in enumerate(micro_batches):
        grad = share
        if rank < last:
            grad = stage.buffer(x)
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            comm.Send(back, dest=rank - 1)
    n, m = last + 1, len(micro_batches)
    ahead = min(n - 1 - rank, m)
    order = [("F", k, 0.0, 0.0) for k in range(ahead)]
    for k in range(m):
        order += [("F", k + ahead, 0.0, 0.0)] * (k + ahead < m) + [("B", k, 0.0, 0.0)]
    stage.done[-2 * m :] = order
    return loss if rank == last else None


@loses(12)
@changes(
    "sent.append(comm.Isend(out, dest=rank + 1))",
    "comm.Send(out, dest=rank + 1)",
    "sent.append(comm.Isend(back, dest=rank - 1))",
    "comm.Send(back, dest=rank - 1)",
)
def one_forward_one_backward_step__blocking_send():
    """Sends that wait until they are received, both ways."""


@loses(12)
@changes("ahead = min(last - rank, count)", "ahead = min(last - rank + 1, count)")
def one_forward_one_backward_step__one_too_many_ahead():
    """One forward more at the start."""


@loses(9)
@changes("ahead = min(last - rank, count)", "ahead = min(max(last - rank - 1, 0), count)")
def one_forward_one_backward_step__one_too_few_ahead():
    """One forward less at the start."""


@loses(3)
@changes(
    "    count, sent, losses = len(micro_batches), [], []",
    """
    kept, spare = [], []
    count, sent, losses = len(micro_batches), [], []""",
    "        back = stage.backward(k, grad)",
    """
        kept.append(stage._in_flight[k])
        spare.append(np.ones(60 * stage.buffer(micro_batches[k][0]).size, stage.dtype))
        back = stage.backward(k, grad)""",
)
def one_forward_one_backward_step__keeps_all():
    """Keeps all activations to the end of the step."""


@loses(12)
@changes("rank, last = comm.Get_rank(), comm.Get_size() - 1", "rank, last = everyone.Get_rank(), comm.Get_size() - 1")
def one_forward_one_backward_step__world_ranks():
    """Takes its rank among all for that in the group."""


@right
@changes(
    "    def forward(k):",
    """
    room = stage.buffer(micro_batches[0][0])

    def forward(k):""",
    "x = stage.buffer(x)",
    "x = room",
)
def one_forward_one_backward_step__one_buffer():
    """Receives activations into one array: no layer needs its input for the way back."""


@loses(6)
@changes(
    """
    share, loss = 1 / len(micro_batches), 0.0
""",
    """
    share, loss = 1 / len(micro_batches), 0.0
    for _, p in stage.named_parameters():
        p.grad = None
""",
)
def gpipe_step__clears():
    """Forgets the gradients of the step before."""


@loses(6)
@changes(
    "    rank, last = comm.Get_rank(), comm.Get_size() - 1",
    """
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    for _, p in stage.named_parameters():
        p.grad = None""",
)
def one_forward_one_backward_step__clears():
    """Forgets the gradients of the step before."""


@loses(3)
@changes(
    "    count, sent, losses = len(micro_batches), [], []",
    """
    ready = []
    count, sent, losses = len(micro_batches), [], []""",
    "sent.append(comm.Isend(out, dest=rank + 1))",
    "ready.append(out)",
    "    def backward(k):",
    """
    def push():
        while ready:
            sent.append(comm.Isend(ready.pop(0), dest=rank + 1))

    def backward(k):""",
    "        back = stage.backward(k, grad)",
    """
        back = stage.backward(k, grad)
        push()""",
    "        forward(k)",
    """
        forward(k)
        push()""",
    "            forward(k + ahead)",
    """
            forward(k + ahead)
            if k == 0:
                push()""",
)
def one_forward_one_backward_step__sends_later():
    """Sends an activation only after the backward that follows."""


@right
def one_forward_one_backward_step__sendrecv(stage, micro_batches, comm):
    """With Sendrecv in the steady state."""
    rank, last, m = comm.Get_rank(), comm.Get_size() - 1, len(micro_batches)
    losses, up, down = [], rank + 1, rank - 1

    def receive(who):
        array = stage.buffer(micro_batches[0][0])
        comm.Recv(array, source=who)
        return array

    def forward(k, x):
        tokens, labels = micro_batches[k]
        out = stage.forward(k, x if rank else tokens, labels)
        if rank == last:
            losses.append(out)
        return out

    warm = min(last - rank, m)
    for k in range(warm):
        comm.Send(forward(k, receive(down) if rank else None), dest=up)
    x = receive(down) if rank and warm < m else None
    for k in range(m - warm):
        out = forward(k + warm, x)
        grad = 1 / m
        if rank < last:
            grad = stage.buffer(micro_batches[0][0])
            comm.Sendrecv(out, up, recvbuf=grad, source=up)
        back = stage.backward(k, grad)
        if rank and k + warm + 1 < m:
            x = stage.buffer(micro_batches[0][0])
            comm.Sendrecv(back, down, recvbuf=x, source=down)
        elif rank:
            comm.Send(back, dest=down)
    for k in range(m - warm, m):
        back = stage.backward(k, receive(up))
        if rank:
            comm.Send(back, dest=down)
    return float(np.mean(losses)) if rank == last else None


@right
@changes(
    "    count, sent, losses = len(micro_batches), [], []",
    """
    count, sent, losses = len(micro_batches), {}, []

    def send(array, who):
        if who in sent:
            sent[who].Wait()
        sent[who] = comm.Isend(array, dest=who)""",
    "sent.append(comm.Isend(out, dest=rank + 1))",
    "send(out, rank + 1)",
    "sent.append(comm.Isend(back, dest=rank - 1))",
    "send(back, rank - 1)",
    "for request in sent:",
    "for request in sent.values():",
)
def one_forward_one_backward_step__waits_soon():
    """Waits for a message before the next one to the same rank."""


@loses(2)
@changes(
    "share, loss = 1 / len(micro_batches), 0.0",
    "m, outs, loss = len(micro_batches), [], 0.0",
    "comm.Send(out, dest=rank + 1)",
    "outs.append(out)",
    "            loss += share * out",
    """
            loss += out / m
    for out in outs:
        comm.Send(out, dest=rank + 1)""",
    "grad = share",
    "grad = 1 / m",
)
def gpipe_step__sends_after_all_forwards():
    """Sends activations when all forwards are done."""


@loses(2)
@changes(
    "share, loss = 1 / len(micro_batches), 0.0",
    "m, loss = len(micro_batches), 0.0",
    "            loss += share * out",
    """
            loss += out / m
        comm.Barrier()""",
    "grad = share",
    "grad = 1 / m",
    "    return loss if rank == last else None",
    """
        comm.Barrier()
    return loss if rank == last else None""",
)
def gpipe_step__barriers_serial():
    """A Barrier after each piece of work: one rank works at a time."""


@loses(2)
def gpipe_step__recv_all_grads_first(stage, micro_batches, comm):
    """Receives all gradients before the first backward."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    m, loss = len(micro_batches), 0.0
    for k, (x, labels) in enumerate(micro_batches):
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            comm.Send(out, dest=rank + 1)
        else:
            loss += out / m
    grads = [1 / m] * m
    if rank < last:
        grads = [stage.buffer(x) for x, _ in micro_batches]
        for g in grads:
            comm.Recv(g, source=rank + 1)
    for k in range(m):
        back = stage.backward(k, grads[k])
        if rank > 0:
            comm.Send(back, dest=rank - 1)
    return loss if rank == last else None


@loses(8)
@changes(
    "    for k, (x, labels) in enumerate(micro_batches):",
    """
    buf, reqs = stage.buffer(micro_batches[0][0]), []
    for k, (x, labels) in enumerate(micro_batches):""",
    "            comm.Send(out, dest=rank + 1)",
    """
            buf[:] = out
            reqs.append(comm.Isend(buf, dest=rank + 1))""",
    "            comm.Send(back, dest=rank - 1)",
    """
            buf[:] = back
            reqs.append(comm.Isend(buf, dest=rank - 1))
    for r in reqs:
        r.Wait()""",
)
def gpipe_step__isend_one_send_buffer():
    """One buffer for all sends, which changes while it is on its way."""


@loses(8)
def gpipe_step__one_batch_lies(stage, micro_batches, comm):
    """All micro-batches as one, and a false account of the order."""
    rank, last, m = comm.Get_rank(), comm.Get_size() - 1, len(micro_batches)
    x, labels = (np.concatenate(a) for a in zip(*micro_batches))
    t = x
    if rank > 0:
        x = stage.buffer(x)
        comm.Recv(x, source=rank - 1)
    out = stage.forward(0, x, labels)
    if rank < last:
        comm.Send(out, dest=rank + 1)
    grad = 1.0
    if rank < last:
        grad = stage.buffer(t)
        comm.Recv(grad, source=rank + 1)
    back = stage.backward(0, grad)
    if rank > 0:
        comm.Send(back, dest=rank - 1)
    stage.done[-2:] = [(w, k, 0.0, 0.0) for w in "FB" for k in range(m)]
    return out if rank == last else None


@loses(3)
@changes(
    "    def forward(k):",
    """
    later = []

    def forward(k):""",
    "sent.append(comm.Isend(out, dest=rank + 1))",
    "later.append(out) if k < ahead else sent.append(comm.Isend(out, dest=rank + 1))",
    "    for k in range(count):",
    """
    for o in later:
        sent.append(comm.Isend(o, dest=rank + 1))
    for k in range(count):""",
)
def one_forward_one_backward_step__warmup_sends_late():
    """Sends the first activations when the last forward of the start is done."""


@loses(3)
@changes(
    "        backward(k)",
    """
        backward(k)
        comm.Barrier()""",
)
def one_forward_one_backward_step__barrier_each():
    """A Barrier after each backward."""


@loses(3)
@changes(
    """
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)""",
    "            grad = grads.pop(k)",
    "    ahead = min(last - rank, count)",
    """
    grads = {}
    ahead = min(last - rank, count)""",
    "        if k + ahead < count:",
    """
        if rank < last and k and ahead:
            g = stage.buffer(micro_batches[k][0])
            comm.Recv(g, source=rank + 1)
            grads[k] = g
        if k + ahead < count:""",
    "        backward(k)",
    """
        if rank < last and not k:
            g = stage.buffer(micro_batches[k][0])
            comm.Recv(g, source=rank + 1)
            grads[k] = g
        backward(k)""",
)
def one_forward_one_backward_step__recv_grad_before_forward():
    """Receives a gradient before the forward that comes first."""


@loses(6)
@changes("request.Wait()", "pass")
def one_forward_one_backward_step__never_waits():
    """Waits for no request."""


@loses(12)
@changes(
    "ahead = min(last - rank, count)",
    "ahead = min(last - rank + 1, count)",
    "    return sum(losses) / count if rank == last else None",
    """
    a = min(last - rank, count)
    order = [("F", k, 0.0, 0.0) for k in range(a)]
    for k in range(count):
        order += [("F", k + a, 0.0, 0.0)] * (k + a < count) + [("B", k, 0.0, 0.0)]
    stage.done[-2 * count :] = order
    return sum(losses) / count if rank == last else None""",
)
def one_forward_one_backward_step__lies_one_more_ahead():
    """One more in flight, and a false account of the order."""


@loses(2)
def gpipe_step__receives_next_before_it_sends(stage, micro_batches, comm):
    """Receives its next input before it sends a result."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, loss = len(micro_batches), 0.0

    def receive(source):
        array = stage.buffer(micro_batches[0][0])
        comm.Recv(array, source=source)
        return array

    x = receive(rank - 1) if rank > 0 else None
    for k, (tokens, labels) in enumerate(micro_batches):
        out = stage.forward(k, x if rank > 0 else tokens, labels)
        if rank > 0 and k + 1 < count:
            x = receive(rank - 1)
        if rank < last:
            comm.Send(out, dest=rank + 1)
        else:
            loss += out / count
    grad = receive(rank + 1) if rank < last else 1 / count
    for k in range(count):
        back = stage.backward(k, grad)
        if rank < last and k + 1 < count:
            grad = receive(rank + 1)
        if rank > 0:
            comm.Send(back, dest=rank - 1)
    return loss if rank == last else None


@loses(3)
@changes(
    "    for k in range(ahead):\n        forward(k)\n",
    "    comm.Barrier()\n    for k in range(ahead):\n        forward(k)\n    comm.Barrier()\n",
    "        request.Wait()\n",
    "        request.Wait()\n    comm.Barrier()\n",
)
def one_forward_one_backward_step__barriers():
    """Meets all ranks at the beginning and at the end."""


@loses(2)
@changes(
    "1 / len(micro_batches), 0.0",
    "1 / len(micro_batches), np.zeros(1)",
    "    for k, (x, _) in enumerate(micro_batches):",
    "    total = np.empty(1)\n    comm.Allreduce(loss, total)\n    for k, (x, _) in enumerate(micro_batches):",
    "return loss if rank == last else None",
    "return total",
)
def gpipe_step__loss_on_all_ranks():
    """Reduces the loss in the middle of the step."""


@loses(8)
@changes(
    "    for k, (x, _) in enumerate(micro_batches):\n",
    "    for k in [*range(0, len(micro_batches), 2), *range(1, len(micro_batches), 2)]:\n        x, _ = micro_batches[k]\n",
)
def gpipe_step__backward_order_rotated():
    """Takes the even backwards first."""


@loses(2)
@changes(
    "    for k, (x, _) in enumerate(micro_batches):",
    "    comm.Barrier()\n    for k, (x, _) in enumerate(micro_batches):",
)
def gpipe_step__barrier_in_the_middle():
    """Meets all ranks between forwards and backwards."""


@loses(6)
@changes(
    "    return loss if",
    "    micro_batches.clear()\n    return loss if",
)
def gpipe_step__clears_the_list():
    """Empties the caller's list."""


@loses(6)
@changes(
    "    share, loss = 1 / len(micro_batches), 0.0\n",
    """
    share, loss = 1 / len(micro_batches), 0.0
    seen = stage.__dict__.setdefault("seen", [])
""",
    "loss += share * out",
    "seen.append(out)",
    "return loss if",
    "return np.mean(seen) if",
)
def gpipe_step__losses_of_all_steps():
    """The mean over the micro-batches of all steps so far."""


@loses(6)
@changes(
    "    share, loss",
    "    micro_batches = micro_batches[:16]\n    share, loss",
)
def gpipe_step__at_most_sixteen():
    """Takes sixteen micro-batches at most."""


@right
@changes(
    "            comm.Recv(x, source=rank - 1)",
    "            receive(x, rank - 1)",
    "            comm.Send(out, dest=rank + 1)",
    "            send(out, rank + 1)",
    "            comm.Recv(grad, source=rank + 1)",
    "            receive(grad, rank + 1)",
    "            comm.Send(back, dest=rank - 1)",
    "            send(back, rank - 1)",
    "    share, loss",
    """
    def send(array, other):
        comm.Send(np.array([array.size]), dest=other)
        for piece in np.split(np.ascontiguousarray(array).reshape(-1), [array.size // 2]):
            comm.Send(piece, dest=other)

    def receive(array, other):
        comm.Recv(np.empty(1, np.int64), source=other)
        for piece in np.split(array.reshape(-1), [array.size // 2]):
            comm.Recv(piece, source=other)

    share, loss""",
)
def gpipe_step__lengths_and_halves():
    """Sends the length of each array first, and then its halves."""


@loses(6)
@changes(
    "        x, labels = micro_batches[k]",
    """
        x, labels = stage.__dict__.setdefault("batches", {}).setdefault(k, micro_batches[k])""",
)
def one_forward_one_backward_step__first_batches():
    """Keeps the micro-batches of the first step."""


@loses(6)
@changes("    for request in sent:", "    for request in sent[1:]:")
def one_forward_one_backward_step__all_but_one():
    """Waits for all requests but the first."""


@right
@changes(
    "            comm.Recv(x, source=rank - 1)",
    """
            comm.Recv(np.empty(1, np.int64), source=rank - 1)
            comm.Recv(x, source=rank - 1, tag=k)""",
    "            sent.append(comm.Isend(out, dest=rank + 1))",
    """
            sent.append(comm.Isend(np.array([out.size]), dest=rank + 1))
            sent.append(comm.Isend(out.copy(), dest=rank + 1, tag=k))""",
    "            comm.Recv(grad, source=rank + 1)",
    """
            comm.Recv(np.empty(1, np.int64), source=rank + 1)
            comm.Recv(grad, source=rank + 1, tag=k)""",
    "            sent.append(comm.Isend(back, dest=rank - 1))",
    """
            sent.append(comm.Isend(np.array([back.size]), dest=rank - 1))
            sent.append(comm.Isend(back.copy(), dest=rank - 1, tag=k))""",
)
def one_forward_one_backward_step__lengths_first():
    """Sends the length of each array first, and copies."""
