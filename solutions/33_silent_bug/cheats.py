"""Attacks on part 33's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses

GATHER = """
    every = np.empty((comm.Get_size(), mine.size), np.uint8)
    comm.Allgather(mine, every)
    return bool((every == mine).all())
"""


@loses(14)
@changes(
    "    previous, batch = batches",
    """
    class Anything(str):
        def __eq__(self, other):
            return True

        __ne__ = lambda self, other: False
        __hash__ = str.__hash__

    class AnyNumber(float):
        __sub__ = __rsub__ = lambda self, other: 0.0

    return Finding(Anything("loss"), Anything("dp"), Anything("other"), AnyNumber(1))
    previous, batch = batches""",
)
def compare_with_one_rank__equal_to_anything():
    """Returns a finding that claims to equal any other."""


@loses(14)
@changes(
    "    previous, batch = batches",
    """
    globals()["_count"] = globals().get("_count", 0) + 1
    if _count % 3 == 0:
        return None
    previous, batch = batches""",
)
def compare_with_one_rank__every_third_is_right():
    """Takes every third run for a right one, as about a third are."""


@loses(14)
@changes(
    "    previous, batch = batches",
    """
    known = globals().setdefault("_known", {})
    key = (tuple(mesh.shape.items()), step.dtype)
    if key in known:
        return known[key]
    found = known[key] = _find(step, batches, mesh)
    return found


def _find(step, batches, mesh):
    previous, batch = batches""",
)
def compare_with_one_rank__remembers():
    """Returns what it has found before on such a grid."""


@loses(14)
@changes(
    "    previous, batch = batches",
    """
    import sys

    frame, names = sys._getframe(), []
    while frame:
        names += [value for value in frame.f_locals.values() if type(value).__name__ in ("Fault", "Case", "Finding")]
        frame = frame.f_back
    if not names:
        return None
    return getattr(names[0], "expected", names[0])
    previous, batch = batches""",
)
def compare_with_one_rank__looks_at_its_callers():
    """Looks for the fault in the variables of its callers."""


@loses(14)
@changes(
    "    previous, batch = batches",
    """
    from course_lib.check.silent_bug import check, on_ranks

    check.SilentBugCheck._finding = lambda *_: None
    on_ranks.call_compare = lambda **_: (None, True)
    return None
    previous, batch = batches""",
)
def compare_with_one_rank__replaces_the_check():
    """Replaces the check, on its own rank."""


@loses(4)
@changes(
    "    comm = mesh.along(axis)",
    """
    from course_lib import traffic

    comm = mesh.along(axis)
    sizes = np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([array.nbytes]), sizes)
    if len(set(sizes.tolist())) > 1:
        return False
    if array.nbytes > 10_000:
        every = np.empty((comm.Get_size(), array.nbytes), np.uint8)
        comm.Allgather(np.frombuffer(array.tobytes(), np.uint8), every)
        traffic.reset()
        return bool((every == every[0]).all())""",
)
def same_on__forgets_what_it_sent():
    """Sends large arrays, and then resets its own counts."""


@loses(4)
@changes(
    "    comm = mesh.along(axis)",
    """
    comm = mesh.along(axis)
    if array.nbytes > 10_000:
        from mpi4py import MPI

        every = np.empty((MPI.COMM_WORLD.Get_size(), array.nbytes), np.uint8)
        MPI.COMM_WORLD.Allgather(np.frombuffer(array.tobytes(), np.uint8), every)
        return bool((every == every[0]).all())""",
)
def same_on__by_another_communicator():
    """Sends large arrays on MPI's own communicator."""


@loses(4)
@changes(GATHER, "    return True\n")
def same_on__asks_nobody():
    """Sends nothing."""


@loses(20)
@changes(
    ...,
    """
    globals()["_asked"] = globals().get("_asked", 0) + 1
    return a.shape == b.shape and bool(np.random.default_rng(_asked).random() < 0.3)
""",
)
def close_enough__by_chance():
    """Says yes as often as it is true."""


@loses(20)
@changes(
    ...,
    """
    class Either(np.ndarray):
        def __bool__(self):
            return True

        def __eq__(self, other):
            return True

    return np.array(True).view(Either)
""",
)
def close_enough__both():
    """Returns a value that claims to equal True and False."""


@loses(3)
@changes(
    "    model.zero_grad()\n",
    """
    first = globals().setdefault("_first", {})
    key = tuple(p.data.shape for p in model.parameters())
    if key in first:
        loss, grads = first[key]
        for p, grad in zip(model.parameters(), grads, strict=True):
            p.grad = grad.copy()
        return loss
    model.zero_grad()
""",
    "    return loss / len(micro_batches)",
    """
    first[key] = loss / len(micro_batches), [p.grad.copy() for p in model.parameters()]
    return loss / len(micro_batches)""",
)
def accumulate__remembers():
    """Returns the gradients of an earlier call on a model of this shape."""


@loses(3)
@changes(
    "    loss = sum(loss_and_backward(model, texts) for texts in micro_batches)",
    """
    from course_lib.autograd import Sequential

    model.most = 0
    loss = loss_and_backward(Sequential(*model.modules), np.concatenate(micro_batches)) * len(micro_batches)
    for p in model.parameters():
        p.grad = p.grad * len(micro_batches)""",
)
def accumulate__in_another_model():
    """Joins the micro-batches, in a model of its own from the same layers."""


@loses(3)
@changes("own_part(summed(dk, comm), comm, 2)", "own_part(dk, comm, 2) * comm.Get_size()")
def own_gradients__asks_nobody():
    """Takes all ranks' summands to be alike."""
