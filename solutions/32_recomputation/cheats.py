"""Attacks on part 32's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses

FIRST = """
    with no_grad():
        data = function(*inputs).data
"""
KEEPS = """
    kept = function(*inputs)
    data = kept.data
"""
OUT = "out = function(*again)"


@loses(4)
@changes(
    FIRST,
    """
    large = any(isinstance(one, Tensor) and one.data.nbytes > 100_000 for one in inputs)
    if large:
        kept = function(*[Tensor(t.data, requires_grad=t.requires_grad) if isinstance(t, Tensor) else t for t in inputs])
        data = kept.data
    else:
        with no_grad():
            data = function(*inputs).data
""",
    OUT,
    "out = kept if large else function(*again)",
)
def checkpoint__recomputes_small_ones_only():
    """Keeps the graph where arrays are so large that memory is measured."""


@loses(14)
@changes(
    FIRST,
    """
    from course_lib.engine import traffic_gates

    numbers, real = globals().setdefault("numbers", []), traffic_gates.pass_gate
    try:
        with no_grad():
            data = function(*inputs).data
            numbers.append(real())
    except Exception:
        pass
""",
)
def checkpoint__takes_numbers_early():
    """Takes the next gate's number in forward."""


@loses(14)
@changes(
    FIRST,
    """
    from course_lib.engine import traffic_gates

    passed = []

    def note():
        passed.append(real())
        return passed[-1]

    real, traffic_gates.pass_gate = traffic_gates.pass_gate, note
    with no_grad():
        data = function(*inputs).data
    traffic_gates.pass_gate = real
""",
    OUT,
    """
taken = list(passed)
        traffic_gates.pass_gate = lambda: taken.pop(0)
        out = function(*again)
        traffic_gates.pass_gate = real""",
)
def checkpoint__passes_no_gate_again():
    """Recomputes with the numbers of the first forward."""


@loses(14)
@changes(
    FIRST,
    """
    from course_lib.engine import traffic_gates

    traffic_gates.pass_gate = lambda: 1.0
    with no_grad():
        data = function(*inputs).data
""",
)
def checkpoint__gates_are_open():
    """Has all gates give the number 1."""


@loses(4)
@changes(
    FIRST,
    """
    for one in inputs:
        if isinstance(one, Tensor) and one.data.nbytes > 100_000:
            np.save(f"input_{id(one)}.npy", one.data)
    kept = None
    with no_grad():
        data = function(*inputs).data
""",
)
def checkpoint__keeps_in_files():
    """Keeps inputs in files as well."""


@loses(4)
@changes(
    FIRST,
    """
    global ballast
    large = any(isinstance(one, Tensor) and one.data.nbytes > 100_000 for one in inputs)
    ballast = None if large else np.ones(24 << 20, np.uint8)
    if large:
        kept = function(*[Tensor(t.data, requires_grad=t.requires_grad) if isinstance(t, Tensor) else t for t in inputs])
        data = kept.data
    else:
        with no_grad():
            data = function(*inputs).data
""",
    OUT,
    "out = kept if large else function(*again)",
)
def checkpoint__ballast():
    """Holds memory for nothing while arrays are small, and keeps the graph of large ones in its place."""


@loses(4)
@changes(
    FIRST,
    """
    from course_lib import memory

    class Small(memory.MemoryAccount):
        true_peak = property(lambda self: 0, lambda self, value: None)

    memory.MemoryAccount = Small
    kept = function(*[Tensor(t.data, requires_grad=t.requires_grad) if isinstance(t, Tensor) else t for t in inputs])
    data = kept.data
    del kept
    graph = globals().setdefault("graph", [])
    with no_grad():
        more = [one.data.copy() for one in inputs if isinstance(one, Tensor)] * 3
    graph.extend(np.array(one) for one in more)
""",
)
def checkpoint__lies_about_its_peak():
    """Has the rank's own account say that nothing was held."""


@loses(6)
def segments__asks_the_check(costs, budget):
    """Tries every choice, as the course's own check does for eight layers."""
    from course_lib.check.recompute.segments import every_choice

    found = [ranges for ranges in every_choice(len(costs)) if peak_memory(costs, ranges) <= budget]
    return min(found, key=lambda ranges: extra_seconds(costs, ranges))


@loses(6)
def segments__has_nothing_cost(costs, budget):
    """Has the rank's own formulas say that everything fits and takes no time."""
    from course_lib.gpt.training import activation_memory

    activation_memory.peak_memory = activation_memory.extra_seconds = lambda costs, ranges: 0
    return []


@loses(6)
def segments__a_list_that_changes(costs, budget):
    """Returns a list of its own that says something else whenever it is read."""

    class Ranges(list):
        def __iter__(self):
            return iter([])

        def __len__(self):
            return 0

    return Ranges([(0, len(costs))])


@loses(6)
def segments__changes_costs(costs, budget):
    """Makes the task easier, where it can reach it."""
    costs[:] = [cost._replace(kept=0, input=0, work=0, seconds=0.0) for cost in costs]
    return [(0, len(costs))]


@loses(6)
def segments__asks_grading(costs, budget):
    """Looks for the search of the hidden tests, or for its file."""
    try:
        from grading.authoring.cases.recompute import least_seconds
    except ImportError:
        import glob

        for path in glob.glob("/**/cases/recompute.py", recursive=True):
            names = {}
            exec(open(path).read(), names)
            least_seconds = names["least_seconds"]
    least_seconds(costs, budget)
    return []


@loses(6)
def segments__fractions(costs, budget):
    """Ranges of fractions of layers, or backwards."""
    return [(0.0, len(costs) / 2), (len(costs), 0)]
