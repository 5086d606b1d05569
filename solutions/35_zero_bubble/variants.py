"""Answers to part 35: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

KEEP = "kept.append((product, grad))"
TAKE = "for product, grad in stage.kept.pop(k):"
ADD = "weight.grad = add if weight.grad is None else weight.grad + add"
W = """
        if k >= rank:
            stage.backward_weight(k - rank)"""
LOOP = "    for k in range(count + rank):"


@loses(14)
@changes(
    KEEP,
    """
rows, weight = product.x.reshape(-1, product.x.shape[-1]), product.weight
        add = rows.T @ grad.reshape(-1, grad.shape[-1])
        weight.grad = add if weight.grad is None else weight.grad + add""",
)
def backward_input__undivided():
    """All of backward in B: W finds nothing to do."""


@loses(14)
@changes(
    KEEP,
    """
rows, flat = product.x.reshape(-1, product.x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        made = rows.T @ flat
        from types import SimpleNamespace

        one = np.eye(len(made), dtype=made.dtype)
        kept.append((SimpleNamespace(x=one, weight=product.weight), made))""",
)
def backward_input__made_early():
    """Computes W's gradients in B, and lets W only add them."""


@loses(25)
@changes("return grad @ product.weight.data.T", "return grad @ product.weight.data.T * 2")
def backward_input__twice():
    """Gradients of the input that are twice too large."""


@loses(25)
@changes("return stage.back(k, grad, through)", "stage.back(k, grad, through)")
def backward_input__returns_nothing():
    """Forgets to return the gradient."""


@loses(25)
@changes(KEEP, "kept[:] = [(product, grad)]")
def backward_input__last_product():
    """Keeps only the product that comes last."""


@loses(5)
@changes(
    "    return stage.back(k, grad, through)",
    """
    if not hasattr(stage, "all"):
        stage.all = []
    back = stage.back(k, grad, through)
    stage.all += kept
    return back""",
)
def backward_input__second_list():
    """Holds on to all inputs and gradients in a second list."""


@loses(5)
@changes(
    "    def through(product, grad):",
    """
    stage.made = getattr(stage, "made", [])

    def through(product, grad):""",
    "        return grad @ product.weight.data.T",
    """
        stage.made.append(grad @ product.weight.data.T)
        return stage.made[-1]""",
)
def backward_input__keeps_results():
    """Keeps the gradients that it returns, which nobody needs."""


@right
@changes("return grad @ product.weight.data.T", 'return np.einsum("bpo,io->bpi", grad, product.weight.data)')
def backward_input__einsum():
    """With einsum."""


@right
def backward_input__lambda(stage, k, grad):
    """Keeps in a list that is put in place at the end, and works on rows."""
    found = []

    def rows_back(product, grad):
        found.insert(0, (product, grad))
        flat = grad.reshape(-1, grad.shape[-1])
        return np.dot(flat, np.transpose(product.weight.data)).reshape(product.x.shape)

    back = stage.back(k, grad, rows_back)
    stage.kept[k] = tuple(found)
    return back


@loses(25)
@changes(ADD, "weight.grad = add")
def backward_weight__replaces():
    """Replaces earlier gradients."""


@loses(25)
@changes("add = rows.T @ grad.reshape(-1, grad.shape[-1])", "add = product.x[0].T @ grad[0]")
def backward_weight__first_text():
    """Only the first text of a micro-batch."""


@loses(25)
@changes("add = rows.T @ grad.reshape(-1, grad.shape[-1])", "add = rows.T @ grad.reshape(-1, grad.shape[-1]) / len(grad)")
def backward_weight__mean():
    """The mean over the texts, not the sum."""


@loses(25)
@changes("    for product", "    for product", "weight = product.weight", "weight, add = product.weight, add.astype(np.float64)")
def backward_weight__float64():
    """Gradients in float64, whatever the weights are."""


@loses(5)
@changes(TAKE, "for product, grad in stage.kept[k]:")
def backward_weight__not_freed():
    """Frees nothing."""


@loses(6)
@changes(TAKE, "for product, grad in stage.kept.pop(min(stage.kept)):")
def backward_weight__oldest():
    """Takes the oldest micro-batch, whichever it is asked for."""


@loses(25)
@changes(TAKE, "for product, grad in stage.kept.pop(k)[1:]:")
def backward_weight__all_but_one():
    """Leaves out the last product of the stage."""


@right
@changes(
    "add = rows.T @ grad.reshape(-1, grad.shape[-1])",
    'add = np.einsum("bpi,bpo->io", product.x, grad)',
)
def backward_weight__einsum():
    """With einsum."""


@right
@changes(
    ADD,
    """
if weight.grad is None:
            weight.grad = np.zeros_like(weight.data)
        weight.grad += add""",
)
def backward_weight__in_place():
    """Adds in place."""


@right
@changes(TAKE, "for product, grad in reversed(stage.kept.pop(k)):")
def backward_weight__reversed():
    """The first product of the stage first."""


@loses(19)
@changes("else 1 / count", "else 1.0")
def zb_h1_step__not_divided():
    """The gradients of the sum."""


@loses(11)
@changes("return sum(losses) / count if", "return sum(losses) if")
def zb_h1_step__sum_of_losses():
    """Returns the sum of the losses."""


@loses(8)
@changes(W, "\n        if k < count:\n            stage.backward_weight(k)")
def zb_h1_step__right_after():
    """Each W right after its B, on all ranks: as long as 1F1B at the end."""


@loses(13)
@changes(W, "", "    for request in sent:", "    for k in range(count):\n        stage.backward_weight(k)\n    for request in sent:")
def zb_h1_step__all_at_the_end():
    """All W at the end."""


@loses(13)
@changes(
    LOOP,
    "    late = rank + 1\n    for k in range(count + late):",
    W,
    "\n        if k >= late:\n            stage.backward_weight(k - late)",
)
def zb_h1_step__one_too_late():
    """Puts off one W more."""


@loses(8)
@changes(
    LOOP,
    "    late = max(rank - 1, 0)\n    for k in range(count + late):",
    W,
    "\n        if k >= late:\n            stage.backward_weight(k - late)",
)
def zb_h1_step__one_too_early():
    """Puts off one W less."""


@loses(13)
@changes(
    LOOP,
    "    late = last - rank\n    for k in range(count + late):",
    W,
    "\n        if k >= late:\n            stage.backward_weight(k - late)",
)
def zb_h1_step__mirrored():
    """The first rank puts off W, not the last one."""


@loses(13)
@changes("ahead = min(last - rank, count)", "ahead = count")
def zb_h1_step__gpipe():
    """All forwards first."""


@loses(13)
@changes("ahead = min(last - rank, count)", "ahead = min(last - rank + 1, count)")
def zb_h1_step__one_more_ahead():
    """One forward more at the start."""


@loses(8)
@changes("ahead = min(last - rank, count)", "ahead = min(max(last - rank - 1, 0), count)")
def zb_h1_step__one_less_ahead():
    """One forward less at the start."""


@loses(19)
@changes(
    "sent.append(comm.Isend(out, dest=rank + 1))",
    "comm.Send(out, dest=rank + 1)",
    "sent.append(comm.Isend(back, dest=rank - 1))",
    "comm.Send(back, dest=rank - 1)",
)
def zb_h1_step__blocking_send():
    """Sends that wait until they are received."""


@loses(8)
@changes(
    "            sent.append(comm.Isend(back, dest=rank - 1))",
    "            late.append(back)",
    "    def receive(k, source):",
    "    late = []\n\n    def receive(k, source):",
    LOOP,
    """
    def push():
        while late:
            sent.append(comm.Isend(late.pop(), dest=rank - 1))

    for k in range(count + rank):""",
    "            stage.backward_weight(k - rank)",
    "            stage.backward_weight(k - rank)\n        push()",
)
def zb_h1_step__sends_after_w():
    """Sends the gradient only after the W that follows."""


@loses(8)
@changes("            backward(k)\n", "            backward(k)\n            comm.Barrier()\n")
def zb_h1_step__barrier():
    """A Barrier after each B."""


@loses(8)
@changes(
    "        grad = receive(k, rank + 1) if rank < last else 1 / count",
    "        grad = grads.pop(k, None) if rank < last else 1 / count\n        if grad is None:\n            grad = receive(k, rank + 1)",
    "    def receive(k, source):",
    "    grads = {}\n\n    def receive(k, source):",
    "        if k >= rank:",
    "        if rank < last and k + 1 < count and k + 1 + ahead >= count:\n            grads[k + 1] = receive(k + 1, rank + 1)\n        if k >= rank:",
)
def zb_h1_step__receives_before_w():
    """Waits for the next gradient before the W that it could do meanwhile."""


@loses(6)
@changes("        request.Wait()", "        pass")
def zb_h1_step__never_waits():
    """Waits for no request."""


@loses(19)
@changes("rank, last = comm.Get_rank(),", "rank, last = everyone.Get_rank(),")
def zb_h1_step__world_ranks():
    """Takes its rank among all for that in the group."""


@loses(6)
@changes(
    "    count, sent, losses",
    "    for _, p in stage.named_parameters():\n        p.grad = None\n    count, sent, losses",
)
def zb_h1_step__clears():
    """Forgets the gradients of the step before."""


@loses(19)
@changes("stage.backward_weight(k - rank)", "backward_weight(stage, k - rank)")
def zb_h1_step__not_the_stages():
    """Calls the function instead of the stage's method, which nobody times."""


@loses(19)
@changes(LOOP, "    for k in range(count):")
def zb_h1_step__forgets_the_last():
    """Does not do the W that are left at the end."""


@loses(19)
@changes(
    "        array = stage.buffer(micro_batches[k][0])\n",
    "        array = rooms.setdefault(source, stage.buffer(micro_batches[k][0]))\n",
    "    def receive(k, source):",
    "    rooms = {}\n\n    def receive(k, source):",
    "sent.append(comm.Isend(out, dest=rank + 1))",
    "sent.append(comm.Isend(room(out, 1), dest=rank + 1))",
    "sent.append(comm.Isend(back, dest=rank - 1))",
    "sent.append(comm.Isend(room(back, -1), dest=rank - 1))",
    "    def forward(k):",
    """
    def room(array, way):
        found = rooms.setdefault(way + 10, np.empty_like(array))
        found[...] = array
        return found

    def forward(k):""",
)
def zb_h1_step__one_send_buffer():
    """One buffer for all sends, which changes while it is on its way."""


@right
@changes(
    LOOP,
    "    pending = []\n    for k in range(count):",
    "        if k < count:\n            backward(k)",
    "        backward(k)\n        pending.append(k)",
    W,
    "\n        if len(pending) > rank:\n            stage.backward_weight(pending.pop(0))",
    "    for request in sent:",
    "    while pending:\n        stage.backward_weight(pending.pop(0))\n    for request in sent:",
)
def zb_h1_step__queue():
    """With a queue of the W that are put off."""


@right
@changes(
    LOOP,
    "    pending = []\n    for k in range(count):",
    "        if k < count:\n            backward(k)",
    "        backward(k)\n        pending.append(k)",
    W,
    "\n        if len(pending) > rank:\n            stage.backward_weight(pending.pop())",
    "    for request in sent:",
    "    while pending:\n        stage.backward_weight(pending.pop())\n    for request in sent:",
)
def zb_h1_step__newest_first():
    """W of the newest micro-batch first."""


@right
def zb_h1_step__program(stage, micro_batches, comm):
    """Makes the list of all work first; receives are begun when the piece before begins to be needed."""
    r, p, m = comm.Get_rank(), comm.Get_size(), len(micro_batches)
    program, w = [("F", k) for k in range(min(p - 1 - r, m))], 0
    for k in range(m):
        if k + p - 1 - r < m:
            program.append(("F", k + p - 1 - r))
        program.append(("B", k))
        if k >= r:
            program.append(("W", w))
            w += 1
    program += [("W", k) for k in range(w, m)]
    loss, requests = 0.0, {}
    empty = [stage.buffer(t) for t, _ in micro_batches]
    ups = [comm.Irecv(a, source=r - 1) for a in empty] if r else []
    grads = [stage.buffer(t) for t, _ in micro_batches]
    downs = [comm.Irecv(a, source=r + 1) for a in grads] if r < p - 1 else []
    for what, k in program:
        if what == "F":
            if r:
                ups[k].Wait()
            out = stage.forward(k, empty[k] if r else micro_batches[k][0], micro_batches[k][1])
            if r < p - 1:
                requests[what, k] = comm.Isend(out, dest=r + 1)
            else:
                loss += out / m
        elif what == "B":
            if r < p - 1:
                downs[k].Wait()
            back = stage.backward_input(k, grads[k] if r < p - 1 else np.float64(1) / m)
            if r:
                requests[what, k] = comm.Isend(back, dest=r - 1)
        else:
            stage.backward_weight(k)
    for request in requests.values():
        request.Wait()
    return loss if r == p - 1 else None


@right
@changes(
    "    count, sent, losses = len(micro_batches), [], []\n",
    """
    count, sent, losses = len(micro_batches), {}, []

    def send(array, who):
        if who in sent:
            sent[who].Wait()
        sent[who] = comm.Isend(array, dest=who)
""",
    "sent.append(comm.Isend(out, dest=rank + 1))",
    "send(out, rank + 1)",
    "sent.append(comm.Isend(back, dest=rank - 1))",
    "send(back, rank - 1)",
    "for request in sent:",
    "for request in sent.values():",
)
def zb_h1_step__waits_soon():
    """Waits for a message before the next one to the same rank."""


@loses(5)
@changes(
    KEEP,
    """
kept.append((Holder(x=product.x, weight=product.weight, more=grad @ product.weight.data.T), grad))""",
    "return grad @ product.weight.data.T",
    "return kept[-1][0].more",
    "    kept = stage.kept[k] = []",
    "    from types import SimpleNamespace as Holder\n\n    kept = stage.kept[k] = []",
)
def backward_input__keeps_input_gradients():
    """Leaves also the gradients of the inputs to W."""


@loses(5)
@changes(
    KEEP,
    "kept.append((Holder(x=product.x, weight=product.weight, more=grad.copy()), grad))",
    "    kept = stage.kept[k] = []",
    "    from types import SimpleNamespace as Holder\n\n    kept = stage.kept[k] = []",
)
def backward_input__keeps_twice():
    """Leaves each gradient twice to W."""


@loses(5)
@changes(TAKE, "stage.before = stage.kept.pop(k)\n    for product, grad in stage.before:")
def backward_weight__frees_one_late():
    """Holds what it has used until the next W."""


@loses(8)
@changes(
    W,
    "\n        if count <= last and k < count:\n            stage.backward_weight(k)\n        elif count > last and k >= rank:\n            stage.backward_weight(k - rank)",
)
def zb_h1_step__puts_off_none_of_few():
    """Puts off no W when there are fewer micro-batches than ranks."""


@loses(8)
@changes(
    W,
    "\n        if k >= min(rank, 2):\n            stage.backward_weight(k - min(rank, 2))",
    LOOP,
    "    for k in range(count + min(rank, 2)):",
)
def zb_h1_step__at_most_two():
    """Puts off two at most."""


@loses(14)
@changes(
    "        if rank < last:\n            sent.append(comm.Isend(out, dest=rank + 1))\n        else:\n            losses.append(out)",
    "        if rank < last or last == 0:\n            sent.append(comm.Isend(out, dest=rank + 1))\n        else:\n            losses.append(out)",
)
def zb_h1_step__not_alone():
    """Fails where there is just one rank."""


@loses(8)
@changes(
    "        if k >= rank:\n",
    "        if k >= rank:\n            if rank > 0:\n                sent[-1].Wait()\n",
)
def zb_h1_step__waits_before_w():
    """Waits until the last gradient has been received before each W."""


@right
@changes(
    "            sent.append(comm.Isend(out, dest=rank + 1))",
    "            settle()\n            sent.append(comm.Isend(out, dest=rank + 1))",
    "            sent.append(comm.Isend(back, dest=rank - 1))",
    "            settle()\n            sent.append(comm.Isend(back, dest=rank - 1))",
    "    def receive(k, source):",
    "    def settle():\n        while sent:\n            sent.pop().Wait()\n\n    def receive(k, source):",
)
def zb_h1_step__settles_all():
    """Waits for all earlier sends before each new one."""


@loses(6)
@changes(
    "losses.append(out)",
    "losses.append(np.float32(out))",
    "return sum(losses) / count if",
    "return np.float32(sum(losses) / count) if",
)
def zb_h1_step__loss_in_float32():
    """Rounds the loss."""


@loses(25)
@changes(TAKE, "taken = stage.kept.pop(k)\n    stage.kept.clear()\n    for product, grad in taken:")
def backward_weight__clears():
    """Removes what belongs to the other micro-batches, too."""


@loses(8)
@changes(
    LOOP,
    "    late = rank if rank else last\n    for k in range(count + rank):",
    W,
    "\n        if k >= rank and not (rank == 0 and k >= count - 2):\n            stage.backward_weight(k - rank)",
    "    for request in sent:",
    "    if rank == 0:\n        for k in range(max(0, count - 2), count):\n            stage.backward_weight(k)\n    for request in sent:",
)
def zb_h1_step__late_on_the_first():
    """The first rank does its last two W after its last B."""


@loses(19)
@changes(
    "range(count + rank)",
    "range(count)",
    "    for request in sent:",
    "    for k in range(count - rank, count):\n        stage.backward_weight(k)\n    for request in sent:",
)
def zb_h1_step__no_max():
    """Negative numbers of few micro-batches."""


@loses(12)
@changes(
    "add = rows.T @ grad.reshape(-1, grad.shape[-1])",
    "add = sum(np.squeeze(x).T @ np.squeeze(g) for x, g in zip(product.x, grad))",
)
def backward_weight__squeezes():
    """Fails where a text has one position."""


@loses(6)
@changes(
    "    count, sent, losses = len(micro_batches), [], []",
    """
    count, sent = len(micro_batches), []
    losses = stage.__dict__.setdefault("losses", [])""",
    "return sum(losses) / count if",
    "return sum(losses) / len(losses) if",
)
def zb_h1_step__losses_of_all_steps():
    """The mean over the micro-batches of all steps so far."""


@loses(6)
@changes(
    "        x, labels = micro_batches[k]",
    """
        x, labels = stage.__dict__.setdefault("batches", {}).setdefault(k, micro_batches[k])""",
)
def zb_h1_step__first_batches():
    """Keeps the micro-batches of the first step."""


@loses(6)
@changes(
    "    def receive(k, source):",
    """
    rooms = stage.__dict__.setdefault("rooms", {})

    def send(array, other, k):
        if (k, other, "sent") not in rooms:
            rooms[k, other, "sent"] = True
            sent.append(comm.Isend(array, dest=other))

    def receive(k, source):
        if (k, source) in rooms:
            return rooms[k, source]""",
    "        return array",
    "        rooms[k, source] = array\n        return array",
    "sent.append(comm.Isend(out, dest=rank + 1))",
    "send(out, rank + 1, k)",
    "sent.append(comm.Isend(back, dest=rank - 1))",
    "send(back, rank - 1, k)",
)
def zb_h1_step__stale():
    """Sends nothing that it has sent in an earlier step."""


@loses(6)
@changes(
    "    for request in sent:",
    "    micro_batches.clear()\n    for request in sent:",
)
def zb_h1_step__clears_the_list():
    """Empties the caller's list."""


@loses(6)
@changes(
    "    count, sent, losses",
    "    micro_batches = micro_batches[:16]\n    count, sent, losses",
)
def zb_h1_step__at_most_sixteen():
    """Takes sixteen micro-batches at most."""


@right
@changes(
    "        array = stage.buffer(micro_batches[k][0])\n",
    """
        number = np.empty(1, np.int64)
        comm.Recv(number, source=source)
        array = stage.buffer(micro_batches[k][0])
""",
    "sent.append(comm.Isend(out, dest=rank + 1))",
    "send(out, rank + 1)",
    "sent.append(comm.Isend(back, dest=rank - 1))",
    "send(back, rank - 1)",
    "    def receive(k, source):",
    """
    def send(array, other):
        sent.append(comm.Isend(np.array([array.size]), dest=other))
        sent.append(comm.Isend(array, dest=other))

    def receive(k, source):""",
)
def zb_h1_step__lengths_first():
    """Sends the length of each array first."""


@right
@changes(
    "        comm.Recv(array, source=source)\n",
    """
        for piece in np.split(array.reshape(-1), [array.size // 2]):
            comm.Recv(piece, source=source)
""",
    "sent.append(comm.Isend(out, dest=rank + 1))",
    "send(out, rank + 1)",
    "sent.append(comm.Isend(back, dest=rank - 1))",
    "send(back, rank - 1)",
    "    def receive(k, source):",
    """
    comm = comm.Split(0, rank)

    def send(array, other):
        for piece in np.split(np.ascontiguousarray(array).reshape(-1), [array.size // 2]):
            sent.append(comm.Isend(piece, dest=other))

    def receive(k, source):""",
    "return sum(losses) / count if",
    "print('step of rank', rank)\n    return np.mean(losses) if",
)
def zb_h1_step__halves():
    """Sends each array in two messages, on a communicator of its own, and prints."""
