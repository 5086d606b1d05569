"""Functions that the checks of the schedules of parts 25 and 35 run on the ranks; see `pipeline.check` and `pipeline.zero_bubble`."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from course_lib import memory
from course_lib.check.cases.layouts import LAYOUTS, arrange
from course_lib.collectives.progress import operations
from course_lib.engine import traffic_gates
from course_lib.engine.namespace import get_ipython, student
from course_lib.gpt.model.decoder import Sizes, layers
from course_lib.gpt.model.divided_stage import DividedStage
from course_lib.gpt.model.stage import Stage


def build_stage(sizes, values, place, meets, deep, divided, stage=None):
    """Make a stage with these parameters in this rank's group; see `concurrent_work` for `meets`.

    `deep`: release freed memory to the system at once. `divided`: its backward consists of the student's two functions.
    `stage`: number of stages and this one's number, if not those of the group.
    """
    everyone = student("everyone")
    kind, functions = Stage, {}
    if divided:
        kind, functions = DividedStage, dict(backward_input=student("backward_input"), backward_weight=student("backward_weight"))
    comm, other = (everyone.Split(color=place[0], key=place[1]) for _ in range(2))
    between = everyone.Split(color=place[0], key=-place[1])  # the same ranks as another communicator
    n, me = comm.Get_size(), comm.Get_rank()
    layers_of = stage or (n, me)
    kind = kind if meets is None else _gated(kind, between, [[n - 1 - other for other in others] for others in meets])
    stage = kind(layers(Sizes(*sizes), *layers_of, dtype=values[0].dtype), sizes[1], values[0].dtype, **functions)
    for (_, p), value in zip(stage.named_parameters(), values, strict=True):
        p.data = value.copy()
    stage.told = []
    get_ipython().user_ns["trial"] = stage, (comm, other)
    if deep:
        memory.release_freed_at_once(True)


def _gated(kind, between, meets):
    """Return a kind of stage with gates: it works once enough has been sent, concurrently with some ranks of the group `between`.

    The numbers of its gate and of theirs scale what it works on.
    """

    class Gated(kind):
        def forward(self, k, x, labels):
            return forward_scaled(self, k, x, labels, self.dtype.type(self.begin()))

        def backward(self, k, grad):
            return super().backward(k, np.asarray(grad, self.dtype) * self.dtype.type(self.begin()))

        def back(self, k, grad, through):
            products = self.products[k] = []
            return super().back(k, np.asarray(grad, self.dtype) * self.dtype.type(self.begin()), noting(products, through))

        def backward_weight(self, k):
            number, products = self.begin(), self.products.pop(k, ())
            for product in products:
                scale_rows(product.x, row_factors(number, product.x))
            super().backward_weight(k)
            end_products(products)

        def begin(self):
            number, theirs, others = np.array([traffic_gates.pass_gate()]), np.empty(1), meets.pop(0)
            self.told += [between.Isend(number, dest=other) for other in others]
            product = float(number[0])
            for other in others:
                between.Recv(theirs, source=other)
                product *= float(theirs[0])
            return product

    Gated.products = {}
    return Gated


def noting(products, through):
    """Have a function of `DividedStage.back` note the products that it is called with."""

    def noted(product, grad):
        products.append(product)
        return through(product, grad)

    return noted


def row_factors(number, x):
    """Factors of the rows of x, which depend on a gate's number: their sum of products cannot be computed before the number is known."""
    return 1 + 0.5 * np.cos(number * np.arange(1, x.size // x.shape[-1] + 1))


def scale_rows(x, factors):
    """Multiply each row of x in place."""
    x.reshape(-1, x.shape[-1])[...] *= factors[:, None].astype(x.dtype)


def forward_scaled(stage, k, x, labels, number):
    """Take a micro-batch through a stage whose input is scaled by a number; on the first stage, that is the token embeddings.

    The result is not linear in the number, so the work cannot be done before the number is known.
    """
    if not stage.first:
        return Stage.forward(stage, k, x * number, labels)
    embed, *others = stage.layers
    stage.layers = [lambda tokens: embed(tokens) * number, *others]
    try:
        return Stage.forward(stage, k, x, labels)
    finally:
        stage.layers = [embed, *others]


def run_steps(function, lists, turns, watched):
    """Take steps on micro-batches that no rank has seen before, on two communicators in turn.

    Parameters
    ----------
    function : str
    lists : list of list of (numpy.ndarray, numpy.ndarray)
        Lists of micro-batches.
    turns : tuple of int
        For each step, which list; a list may come twice.
    watched : bool
        Whether to watch the memory.

    Returns
    -------
    tuple
        What the steps returned, the gradients, the order of the work, the open requests, parameters, micro-batches, and, if
        `watched`, the peak of the bytes held.
    """
    stage, comms = student("trial")
    before = operations.progress_state.open_requests
    lists = [[tuple(arrange(array, LAYOUTS[k % len(LAYOUTS)]) for array in pair) for k, pair in enumerate(pairs)] for pairs in lists]
    kept = [list(pairs) for pairs in lists]
    with memory.watch() if watched else nullcontext() as held:
        losses = [student(function)(stage, lists[turn], comms[number % 2]) for number, turn in enumerate(turns)]
    left = operations.progress_state.open_requests - before - len(stage.told)
    for request in stage.told:
        request.Wait()
    parameters = [p for _, p in stage.named_parameters()]
    peak = held.true_peak if watched else 0
    return losses, [p.grad for p in parameters], stage.order(), left, [p.data for p in parameters], kept, peak


def end_products(products):
    """Overwrite x of products whose weights have their gradients: it must not be used any more."""
    for product in products:
        product.x[...] = np.nan


def go_back(inputs, grads, empty):
    """Take micro-batches forward, and have the student's `backward_input` called for each.

    Returns what that returned, the gradients of the parameters, which begin with ones, or with None where `empty` is True, and the
    gradients that it was called with.
    """
    stage, _ = student("trial")
    stage.products, plain = {}, stage.back

    def back(k, grad, through):
        products = stage.products[k] = []
        return plain(k, grad, noting(products, through))

    stage.back = back
    for (_, p), none in zip(stage.named_parameters(), empty, strict=True):
        p.grad = None if none else np.ones_like(p.data)
    for k, (x, labels) in enumerate(inputs):
        stage.forward(k, x, labels)
    layouts = [LAYOUTS[k % len(LAYOUTS)] for k in range(len(grads))]
    if not stage.last:
        grads = [arrange(grad, layout) for grad, layout in zip(grads, layouts, strict=True)]
    found = [stage.backward_input(k, grad) for k, grad in enumerate(grads)]
    return found, [p.grad for _, p in stage.named_parameters()], grads


def add_weight_gradients(order, factors):
    """Scale the rows of the products' x, and have the student's `backward_weight` called for micro-batches in this order.

    Returns the gradients of the parameters, and the parameters.
    """
    stage, _ = student("trial")
    for k in order:
        products = stage.products.pop(k, ())
        for product in products:
            scale_rows(product.x, factors[k])
        stage.backward_weight(k)
        end_products(products)
    return [p.grad for _, p in stage.named_parameters()], [p.data for _, p in stage.named_parameters()]


def count_kept(inputs, grads):
    """Count the bytes that are kept after `backward_input`, and after `backward_weight`, of one micro-batch of three each."""
    stage, _ = student("trial")

    def forth_and_back(k, done):
        stage.forward(k, *inputs[k])
        stage.backward_input(k, grads[k])
        if done:
            stage.backward_weight(k)
        for _, p in stage.named_parameters():
            p.grad = None

    forth_and_back(0, True)  # allocates what stays allocated
    found = []
    for k in (1, 2):
        with memory.watch() as account:
            forth_and_back(k, k == 2)
        found.append(account.true_now)
    return found


def end_measurement():
    """Keep freed memory for later arrays again."""
    memory.release_freed_at_once(False)
