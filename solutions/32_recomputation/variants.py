"""Answers to part 32: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

FIRST = """
    with no_grad():
        data = function(*inputs).data
"""
FRESH = "again[i] = Tensor(inputs[i].data, requires_grad=inputs[i].requires_grad)"
PUT_BACK = """
        random_states.set(states)
        out = function(*again)
        random_states.set(now)
"""


@loses(14)
def checkpoint__calls_it(function, *inputs):
    """Calls the function, and recomputes nothing."""
    return function(*inputs)


@loses(14)
@changes(
    FIRST,
    """
    kept = function(*inputs)
    data = kept.data
""",
    "out = function(*again)",
    "out = kept",
)
def checkpoint__keeps_the_graph():
    """Goes through the graph of the first forward."""


@loses(4)
@changes(
    FIRST,
    """
    kept = function(*inputs)
    data = kept.data
""",
    "again = list(inputs)",
    """
again = list(inputs)
        kept.data""",
)
def checkpoint__keeps_the_graph_and_recomputes():
    """Recomputes, but its closure keeps the first forward's graph."""


@loses(14)
@changes(FRESH, "again[i] = inputs[i]")
def checkpoint__not_detached():
    """The second forward is part of the same graph as its inputs."""


@loses(10)
@changes(
    "(*(inputs[i] for i in where), anchor)",
    "tuple(inputs[i] for i in where)",
    "(*(again[i].grad for i in where), None)",
    "tuple(again[i].grad for i in where)",
)
def checkpoint__no_anchor():
    """Has no gradient where no input has one."""


@loses(10)
@changes("requires_grad=inputs[i].requires_grad)", "requires_grad=True)")
def checkpoint__tokens_with_a_gradient():
    """Asks for the gradient of whole numbers."""


@loses(10)
@changes("requires_grad=inputs[i].requires_grad)", 'requires_grad=inputs[i].dtype.kind not in "iu" and i == 0)')
def checkpoint__first_input_only():
    """Only the first input gets its gradient."""


@loses(5)
@changes("run_backward(out, grad)", "out.backward(grad)")
def checkpoint__backward_in_backward():
    """Ends all of backward whenever it has recomputed something."""


@loses(3)
@changes(PUT_BACK, "\n        out = function(*again)\n")
def checkpoint__other_masks():
    """Leaves the random states alone."""


@loses(3)
@changes("        random_states.set(now)\n", "")
def checkpoint__states_stay_back():
    """Does not put the random states back after the second forward."""


@loses(3)
@changes(
    PUT_BACK,
    """
        two = "replicated", "sharded"
        random_states.set({name: states[name] for name in two if name in states})
        out = function(*again)
        random_states.set({name: now[name] for name in two if name in now})
""",
)
def checkpoint__two_generators():
    """Knows the names of two generators only."""


@loses(3)
@changes(
    "    states = random_states.get()\n    with no_grad():\n        data = function(*inputs).data\n",
    "    with no_grad():\n        data = function(*inputs).data\n    states = random_states.get()\n",
)
def checkpoint__states_too_late():
    """Keeps the random states after the first forward."""


@loses(3)
@changes(
    PUT_BACK,
    """
        random_states.seed(0, everyone.Get_rank())
        out = function(*again)
        random_states.set(now)
""",
)
def checkpoint__a_seed_of_its_own():
    """Seeds the generators anew for the second forward."""


@loses(3)
@changes(
    "        run_backward(out, grad)",
    """
        run_backward(out, grad)
        random_states.set(states)""",
)
def checkpoint__states_of_the_first_forward_in_the_end():
    """Ends with the random states of its own forward, whatever has been drawn since."""


@loses(14)
@changes(
    FIRST,
    """
    with no_grad():
        data = function(*inputs).data
    random_states.set(states)
    early = function(*[Tensor(t.data, requires_grad=t.requires_grad) if isinstance(t, Tensor) else t for t in inputs])
""",
    "out = function(*again)",
    "out = early",
)
def checkpoint__recomputes_in_forward():
    """Calls the function twice in forward."""


@loses(14)
@changes("        out = function(*again)\n", "        function(*again)\n        out = function(*again)\n")
def checkpoint__recomputes_twice():
    """Calls the function once more than needed."""


@loses(2)
@changes(
    "        again = list(inputs)\n",
    """
        if not grad.any():
            return (*(np.zeros(inputs[i].shape, grad.dtype) for i in where), None)
        again = list(inputs)
""",
)
def checkpoint__nothing_to_do_for_zeros():
    """Saves the work where the gradient is zero: the other ranks wait for this one."""


@loses(4)
@changes(
    "inputs[i].data, requires_grad",
    "copies[i], requires_grad",
    "    def backward(grad):",
    """
    copies = {i: inputs[i].data.copy() for i in where}

    def backward(grad):""",
)
def checkpoint__copies_inputs():
    """Keeps copies of the inputs."""


@loses(4)
@changes(
    "        run_backward(out, grad)",
    """
        tensors, todo = [], [out]
        while todo:
            one = todo.pop()
            tensors.append(one)
            todo += one._inputs
        globals().setdefault("kept", []).append(tensors)
        run_backward(out, grad)""",
)
def checkpoint__a_list_keeps_all():
    """Keeps in a list what it has recomputed."""


@loses(14)
@changes("return (*(again[i].grad for i in where), None)", "return (*(grad for _ in where), None)")
def checkpoint__passes_the_gradient_on():
    """Passes the gradient of the result on as those of the inputs."""


@loses(14)
@changes(
    "    with no_grad():\n        data",
    "    with no_grad():\n        where = 0\n        data",
    "return Tensor.from_operation(data,",
    "return Tensor(data) if True else Tensor.from_operation(data,",
)
def checkpoint__no_operation():
    """Returns a tensor without a graph."""


@loses(4)
@changes("        return (*(again[i].grad", "        checkpoint.last = again, out\n        return (*(again[i].grad")
def checkpoint__keeps_the_last():
    """What it has recomputed last stays in an attribute."""


@right
def checkpoint__by_dicts(function, *inputs):
    """With a dict of fresh tensors by their place, and states put back at the end of backward."""
    before = random_states.get()
    tensors = {i: t for i, t in enumerate(inputs) if isinstance(t, Tensor)}
    with no_grad():
        result = function(*inputs)

    def recompute(grad):
        after = random_states.get()
        random_states.set(before)
        leaves = {i: Tensor(t.data, t.requires_grad) for i, t in tensors.items()}
        try:
            run_backward(function(*(leaves.get(i, value) for i, value in enumerate(inputs))), grad)
        finally:
            random_states.set(after)
        return [leaf.grad for leaf in leaves.values()] + [None]

    something = Parameter(np.zeros(1, np.float32))
    return Tensor.from_operation(result.data, [*tensors.values(), something], recompute)


@right
def checkpoint__detached_at_once(function, *inputs):
    """Detaches the inputs in the first forward, too."""
    from course_lib.autograd.tensor import Tensor as T

    def detached(grads):
        return [T(one.data, grads and one.requires_grad) if isinstance(one, T) else one for one in inputs]

    states = random_states.get()
    with no_grad():
        out = function(*detached(False)).data

    def backward(g):
        leaves, then = detached(True), random_states.get()
        random_states.set(states)
        y = function(*leaves)
        random_states.set(then)
        run_backward(y, g)
        return (None, *(leaf.grad for leaf in leaves if isinstance(leaf, T)))

    return T.from_operation(out, (T(np.ones(1), True), *(one for one in inputs if isinstance(one, T))), backward)


@right
def checkpoint__as_a_class(function, *inputs):
    """As an object with a forward and a backward."""

    class Recompute:
        def __init__(self, function, inputs):
            self.function, self.inputs, self.states = function, inputs, random_states.get()
            self.tensors = [one for one in inputs if isinstance(one, Tensor)]

        def forward(self):
            with no_grad():
                return self.function(*self.inputs).data

        def backward(self, grad):
            later = random_states.get()
            fresh = iter([Tensor(t.data, requires_grad=t.requires_grad) for t in self.tensors])
            arguments = [next(fresh) if isinstance(one, Tensor) else one for one in self.inputs]
            random_states.set(self.states)
            result = self.function(*arguments)
            random_states.set(later)
            run_backward(result, grad)
            return (*(one.grad for one in arguments if isinstance(one, Tensor)), None)

    it = Recompute(function, inputs)
    return Tensor.from_operation(it.forward(), (*it.tensors, Tensor(np.zeros(()), requires_grad=True)), it.backward)


@loses(6)
def segments__nothing(costs, budget):
    """Recomputes nothing."""
    return []


@loses(6)
def segments__each_layer(costs, budget):
    """Recomputes each layer on its own."""
    return [(i, i + 1) for i in range(len(costs))]


@loses(6)
def segments__all_at_once(costs, budget):
    """Recomputes all layers as one range."""
    return [(0, len(costs))]


@loses(6)
def segments__roots(costs, budget):
    """Ranges as long as the root of the number of layers."""
    n = len(costs)
    k = max(1, round(n**0.5))
    return [(i, min(i + k, n)) for i in range(0, n, k)]


@loses(6)
def segments__best_equal_ranges(costs, budget):
    """The fastest of all ranges of equal length, from the first layer on."""
    n, found = len(costs), [[]]
    for k in range(1, n + 1):
        for last in range(k, n + 1, k):
            found.append([(i, i + k) for i in range(0, last, k)])
    fitting = [ranges for ranges in found if peak_memory(costs, ranges) <= budget]
    if not fitting:
        raise ValueError("nothing fits")
    return min(fitting, key=lambda ranges: extra_seconds(costs, ranges))


@loses(6)
def segments__greedy(costs, budget):
    """Layers one by one, those first that save most for their time."""
    order = sorted(range(len(costs)), key=lambda i: -(costs[i].kept - costs[i].input) / costs[i].seconds)
    for many in range(len(costs) + 1):
        ranges = [(i, i + 1) for i in sorted(order[:many])]
        if peak_memory(costs, ranges) <= budget:
            return ranges
    raise ValueError("nothing fits")


@loses(6)
@changes("                if here + costs[stop - 1].work > budget:\n                    break\n", "")
def segments__forgets_the_range():
    """Forgets that a range is held while it is recomputed."""


@loses(6)
@changes("held + cost.kept + cost.work <= budget", "held + cost.kept <= budget", "here + costs[stop - 1].work > budget", "here > budget")
def segments__forgets_work():
    """Forgets a layer's work."""


@loses(6)
@changes("range(i + 1, len(costs) + 1)", "range(i + 1, i + 2)")
def segments__single_layers():
    """The best choice of layers that are recomputed one by one."""


@loses(6)
@changes("min(best[-1].values(), key=lambda found: found[0])[1]", "best[-1][min(best[-1])][1]")
def segments__least_memory():
    """Takes what holds least in the end, not what takes least time."""


@loses(4)
@changes("seconds < best[i].get(held, (np.inf,))[0]", "held not in best[i]")
def segments__first_found():
    """Of the choices that hold as much, takes the first one."""


@loses(2)
@changes("raise ValueError(", "return [] or str(")
def segments__no_error():
    """Returns a text where nothing fits."""


@loses(6)
@changes("[*ranges, (i, stop)]", "[*ranges, (i, stop - 1)]")
def segments__last_layer_number():
    """Gives the number of the last layer instead of the one after it."""


@loses(6)
@changes("reach(stop, held + cost.input, seconds", "reach(stop, held, seconds")
def segments__forgets_inputs():
    """Forgets the input that a range keeps."""


@loses(6)
@changes("reach(stop, held + cost.input, seconds", "reach(stop, held + sum(c.input for c in costs[i:stop]), seconds")
def segments__all_inputs():
    """Counts the inputs of all layers of a range."""


@loses(4)
@changes("costs[stop - 1].seconds", "1")
def segments__counts_layers():
    """Recomputes the fewest layers."""


@loses(4)
@changes("costs[stop - 1].seconds", "costs[stop - 1].kept")
def segments__least_bytes():
    """Recomputes the fewest bytes."""


@loses(4)
@changes("for stop in range(i + 1, len(costs) + 1):", "for stop in range(i + 1, min(i + 8, len(costs)) + 1):")
def segments__short_ranges():
    """Ranges of at most eight layers."""


@right
def segments__from_the_back(costs, budget):
    """Recursively, with memory, from each layer and the bytes held before it."""
    from functools import cache

    n = len(costs)

    @cache
    def best(i, held):
        if i == n:
            return 0.0, ()
        found = [(float("inf"), ())]
        if held + costs[i].kept + costs[i].work <= budget:
            found.append(best(i + 1, held + costs[i].kept))
        here, took = held, 0.0
        for stop in range(i + 1, n + 1):
            here, took = here + costs[stop - 1].kept, took + costs[stop - 1].seconds
            if here + costs[stop - 1].work > budget:
                break
            after, ranges = best(stop, held + costs[i].input)
            found.append((took + after, ((i, stop), *ranges)))
        return min(found)

    seconds, ranges = best(0, 0)
    if seconds == float("inf"):
        raise ValueError("nothing fits")
    return list(ranges)


@right
def segments__fronts(costs, budget):
    """Keeps of each prefix only what no other choice beats in both bytes and time; pairs as lists."""
    fronts = [[] for _ in range(len(costs) + 1)]
    fronts[0] = [(0, 0.0, [])]
    for i, cost in enumerate(costs):
        front, least = [], float("inf")
        for held, seconds, ranges in sorted(fronts[i], key=lambda one: one[:2]):
            if seconds < least:
                least = seconds
                front.append((held, seconds, ranges))
        for held, seconds, ranges in front:
            if held + cost.kept + cost.work <= budget:
                fronts[i + 1].append((held + cost.kept, seconds, ranges))
            total, took = held, seconds
            for j in range(i, len(costs)):
                total, took = total + costs[j].kept, took + costs[j].seconds
                if total + costs[j].work > budget:
                    break
                fronts[j + 1].append((held + cost.input, took, [*ranges, [i, j + 1]]))
    if not fronts[-1]:
        raise ValueError(budget)
    return min(fronts[-1], key=lambda one: one[1])[2]


@right
@changes(
    "min(best[-1].values(), key=lambda found: found[0])[1]",
    "sorted(best[-1].values(), key=lambda found: (found[0], len(found[1])))[0][1]",
)
def segments__fewest_ranges():
    """Of the fastest choices, the one with the fewest ranges."""


@loses(10)
@changes(
    "        data = function(*inputs).data\n",
    "        data = function(*[x for x in inputs if isinstance(x, Tensor)], *[x for x in inputs if not isinstance(x, Tensor)]).data\n",
    "        out = function(*again)\n",
    "        out = function(*[x for x in again if isinstance(x, Tensor)], *[x for x in again if not isinstance(x, Tensor)])\n",
)
def checkpoint__tensors_first():
    """Passes the tensors on before all other inputs."""


@loses(2)
@changes("here + costs[stop - 1].work > budget", "here + costs[stop - 1].work >= budget")
def segments__a_full_range():
    """A range must stay below the budget."""


@loses(2)
@changes(
    "        raise ValueError(",
    "        if max(c.kept + c.work for c in costs) <= budget:\n            return [(i, i + 1) for i in range(len(costs))]\n        raise ValueError(",
)
def segments__error_for_a_layer():
    """Raises an error only if a layer alone does not fit."""


@loses(2)
@changes(
    "    best = [{}",
    "    budget //= 10**6\n    costs = [c._replace(kept=c.kept // 10**6, input=c.input // 10**6, work=c.work // 10**6) for c in costs]\n    best = [{}",
)
def segments__whole_megabytes():
    """Counts in whole megabytes."""


@loses(4)
@changes("    best = [{}", "    costs = [c._replace(seconds=max(1, round(1000 * c.seconds))) for c in costs]\n    best = [{}")
def segments__milliseconds():
    """Counts in whole milliseconds."""


@loses(6)
@changes(
    "                if here + costs[stop - 1].work > budget:\n                    break\n",
    "                if here > budget:\n                    break\n                if here + costs[stop - 1].work > budget:\n                    continue\n",
)
def segments__work_of_the_last():
    """Counts the work of a range's last layer only."""


@loses(6)
@changes("here + costs[stop - 1].work > budget", "here + max(c.work for c in costs[i:stop]) > budget")
def segments__most_work():
    """Adds the largest work of a range to all that it keeps."""


@loses(5)
@changes(
    FRESH,
    "x = inputs[i].data\n            x = x.astype(np.float32).astype(x.dtype) if x.dtype == np.float64 else x\n            again[i] = Tensor(x, requires_grad=inputs[i].requires_grad)",
)
def checkpoint__saves_in_float32():
    """Recomputes from inputs rounded to float32."""


@loses(10)
@changes("        now = random_states.get()\n", "        now = random_states.get()\n        everyone.Barrier()\n")
def checkpoint__waits_for_all():
    """Waits for all ranks before it calls the function again."""


@loses(10)
@changes(
    "        run_backward(out, grad)\n",
    "        run_backward(out, grad)\n        for i in where:\n            if inputs[i].data.flags.writeable and not (inputs[i].data > 1e9).any():\n                inputs[i].data[...] = 0\n",
)
def checkpoint__clears_inputs():
    """Overwrites its inputs when it needs them no more."""


@loses(10)
@changes(
    FRESH,
    'x = inputs[i].data\n            again[i] = Tensor(x.ravel("K").reshape(x.shape), requires_grad=inputs[i].requires_grad)',
)
def checkpoint__in_the_order_of_memory():
    """Reads an input that is not C-contiguous in the order of its memory."""


@loses(6)
@changes(
    "    for i, cost in enumerate(costs):\n",
    "    layers = costs[:]\n    costs.clear()\n    costs = layers\n    for i, cost in enumerate(costs):\n",
)
def segments__empties_costs():
    """Empties the list of costs."""
