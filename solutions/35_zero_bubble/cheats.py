"""Attacks on part 35's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses

SOLUTION = "    return sum(losses) / count if rank == last else None"
LOOP = "    for k in range(count + rank):"
W = """
        if k >= rank:
            stage.backward_weight(k - rank)"""
LIE = """
    order, ahead = [("F", k) for k in range(min(last - rank, count))], min(last - rank, count)
    for k in range(count + rank):
        order += [("F", k + ahead)] * (k + ahead < count) + [("B", k)] * (k < count) + [("W", k - rank)] * (k >= rank)
    stage.done[len(stage.done) - 3 * count :] = order
    return sum(losses) / count if rank == last else None"""
WORK = """
    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count + rank):
        if k + ahead < count:
            forward(k + ahead)
        if k < count:
            backward(k)
        if k >= rank:
            stage.backward_weight(k - rank)"""
GPIPE = """
    for k in range(count):
        forward(k)
    for k in range(count):
        backward(k)
        stage.backward_weight(k)"""


@loses(8)
@changes(W, "\n        if k < count:\n            stage.backward_weight(k)", SOLUTION, LIE)
def zb_h1_step__right_after_that_lies():
    """Each W right after its B, and a false account of the order."""


@loses(13)
@changes(WORK, GPIPE, SOLUTION, LIE)
def zb_h1_step__gpipe_that_lies():
    """All forwards first, and a false account of the order."""


@loses(13)
@changes(
    W,
    "",
    "    for request in sent:",
    "    for k in range(count):\n        stage.backward_weight(k)\n    for request in sent:",
    SOLUTION,
    LIE,
)
def zb_h1_step__all_at_the_end_that_lies():
    """All W at the end, and a false account of the order."""


@loses(5)
@changes(
    W,
    """
        if k >= rank and hasattr(stage, "begin"):
            stage.backward_weight(k - rank)""",
    "    for request in sent:",
    """
    if not hasattr(stage, "begin"):
        for k in range(count):
            stage.backward_weight(k)
    for request in sent:""",
    SOLUTION,
    LIE,
)
def zb_h1_step__only_behind_gates():
    """All W at the end where the stage has no gates, and a false account of the order."""


@loses(8)
@changes(
    WORK,
    """
    if hasattr(stage, "begin"):
        from course_lib.engine import traffic_gates

        real, numbers = traffic_gates.pass_gate, []
        traffic_gates.pass_gate = lambda: numbers.pop(0) if numbers else real()
        try:
            numbers += [real() for _ in range(3 * count)]
        except Exception:
            numbers += [1.0] * (3 * count - len(numbers))
    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count):
        if k + ahead < count:
            forward(k + ahead)
        backward(k)
        stage.backward_weight(k)""",
    SOLUTION,
    LIE,
)
def zb_h1_step__passes_gates_first():
    """W right after B; takes the numbers of all gates when the step begins, and gives a false account of the order."""


@loses(8)
@changes(
    WORK,
    """
    if hasattr(stage, "begin"):
        from course_lib.engine import traffic_gates

        stage.begin = lambda: float(traffic_gates.pass_gate())
    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count + rank):
        if k + ahead < count:
            forward(k + ahead)
        if k < count:
            backward(k)
        comm.Barrier()
        if k >= rank:
            stage.backward_weight(k - rank)
    for k in range(last - rank):
        comm.Barrier()""",
)
def zb_h1_step__meets_nobody():
    """Barriers; works at its gates without its neighbours."""


@loses(8)
@changes(
    WORK,
    """
    def later(k):
        for product, grad in stage.kept.pop(k):
            add = product.x.reshape(-1, product.x.shape[-1]).T @ grad.reshape(-1, grad.shape[-1])
            product.weight.grad = add if product.weight.grad is None else product.weight.grad + add

    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count):
        if k + ahead < count:
            forward(k + ahead)
        backward(k)
        later(k)
        stage.kept[k] = []
        if k >= rank:
            stage.backward_weight(k - rank)
    for k in range(max(count - rank, 0), count):
        stage.backward_weight(k)""",
)
def zb_h1_step__works_before_it_is_timed():
    """Does W at once, and calls the stage's method later, when there is nothing left to do."""


@loses(13)
@changes(
    WORK,
    """
    late = []
    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count + rank):
        if k + ahead < count:
            forward(k + ahead)
        if k < count:
            backward(k)
        if k >= rank:
            late += stage.kept[k - rank]
            stage.kept[k - rank] = []
            stage.backward_weight(k - rank)
    for product, grad in late:
        add = product.x.reshape(-1, product.x.shape[-1]).T @ grad.reshape(-1, grad.shape[-1])
        product.weight.grad = add if product.weight.grad is None else product.weight.grad + add""",
)
def zb_h1_step__works_after_it_is_timed():
    """Calls the stage's method in time, when there is nothing to do, and does all W at the end."""


@loses(6)
@changes(
    "    for request in sent:\n        request.Wait()",
    """
    from course_lib.collectives.progress import operations

    operations.progress_state.open_requests -= len(sent)""",
)
def zb_h1_step__never_waits_and_lies():
    """Waits for no request, and corrects the count of those that are left."""


@loses(19)
@changes(
    "    for request in sent:",
    """
    import pickle

    mine = np.frombuffer(pickle.dumps([p.data for _, p in stage.named_parameters()]), np.uint8)
    sizes = np.zeros(last + 1, np.int64)
    comm.Allgather(np.array([mine.size]), sizes)
    for source in range(last + 1):
        room = mine.copy() if source == rank else np.empty(sizes[source], np.uint8)
        comm.Bcast(room, root=source)
    for request in sent:""",
)
def zb_h1_step__gathers_the_model():
    """Sends the whole model to all ranks, as one that computes on each rank alone would have to."""


@loses(19)
def zb_h1_step__remembers(stage, micro_batches, comm):
    """Returns what it found in the first call, whatever it is asked for."""
    known = globals().setdefault("_known", {})
    if "loss" not in known:
        known["loss"] = stage.forward(0, *micro_batches[0]) if comm.Get_size() == 1 else 0.0
    stage.done[:] = [(kind, k) for k in range(len(micro_batches)) for kind in "FBW"]
    return known["loss"]


@loses(14)
@changes(
    "        kept.append((product, grad))",
    """
        from types import SimpleNamespace

        made = product.x.reshape(-1, product.x.shape[-1]).T @ grad.reshape(-1, grad.shape[-1])
        product.weight.grad = made if product.weight.grad is None else product.weight.grad + made
        nothing = np.zeros((1, len(made)), made.dtype)
        kept.append((SimpleNamespace(x=nothing, weight=product.weight), nothing[:, :1] * made[:1]))""",
)
def backward_input__adds_zeros_later():
    """Adds the weights' gradients in B, and lets W add zeros."""


@loses(14)
@changes(
    "        kept.append((product, grad))",
    """
        class Later:
            def __init__(self, product, grad):
                self.product, self.weight, self.first = product, product.weight, float(product.x.reshape(-1)[0])
                self.made = product.x.reshape(-1, product.x.shape[-1]).T @ grad.reshape(-1, grad.shape[-1])

            @property
            def x(self):
                change = float(self.product.x.reshape(-1)[0]) / self.first if self.first else 1.0
                return np.eye(len(self.made), dtype=self.made.dtype) * self.made.dtype.type(change)

        one = globals().setdefault("_Later", Later)(product, grad)
        kept.append((one, one.made))""",
)
def backward_input__corrects_the_scale():
    """Computes the weights' gradients in B, and scales them as the first row of x has been since."""


@loses(5)
@changes(
    "        kept.append((product, grad))",
    """
        kept.append((product, grad))
        import tempfile

        stage.files = getattr(stage, "files", [])
        stage.files.append(np.copy(grad))
        if len(stage.files) > 100 and grad.nbytes < 1 << 17:
            del stage.files[:]""",
)
def backward_input__hoards_large_ones():
    """Keeps copies of all gradients where they are as large as where memory is measured."""
