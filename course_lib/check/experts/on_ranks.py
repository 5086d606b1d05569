"""Functions that the checks of part 24 run on the ranks, with the student's `route`, `dispatch` and `combine`; see `experts.check`."""

from __future__ import annotations

import numpy as np

from course_lib.autograd.tensor import Tensor
from course_lib.check.experts.reference import second_route
from course_lib.engine.namespace import get_ipython, student
from course_lib.gpt.model.experts import Route


def group_comm(size, me):
    """Group of the rank at place `me`, where every `size` consecutive places form a group."""
    from course_lib.collectives import Communicator

    return Communicator().Split(color=me // size, key=me)


def require_tensor(found, name):
    """Return what a function returned, if it is a Tensor; raise TypeError otherwise."""
    if not isinstance(found, Tensor):
        raise TypeError(f"{name} must return a Tensor, which records how it was computed; got {type(found).__name__}.")
    return found


def require_arrays(found):
    """Return the experts and places of a route, if they are arrays; raise TypeError otherwise."""
    for name, array in (("expert", found.expert), ("place", found.place)):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Route.{name} must be a NumPy array; got {type(array).__name__}.")
    return found.expert, found.place


def call_route(logits, topk, capacity, grad):
    """Call `route` on a rank: the route, and the gradient of the logits for this gradient of the gates."""
    route = student("route")
    given = Tensor(logits, requires_grad=True)
    found = route(given, topk, capacity)
    if not isinstance(found, Route):
        raise TypeError(f"route must return a Route; got {type(found).__name__}.")
    weight = require_tensor(found.weight, "Route.weight: route")
    route(Tensor(logits[::-1].copy()), topk, capacity)  # a second call must not change the first one's result
    expert, place = require_arrays(found)
    if grad is not None and weight.requires_grad and weight.shape == grad.shape:
        weight.backward(grad)
    return expert, place, weight.data, found.experts, found.capacity, given.grad, logits


def backward_shared_input(out, given, grad):
    """Run backward for an input that is also used elsewhere, which adds its own values to the gradient."""
    if grad is not None and out.requires_grad and out.shape == grad.shape:  # otherwise there is no gradient, and the check reports it
        Tensor.from_operation(np.zeros(()), (out, given), lambda _: (grad, given.data)).backward(np.ones(()))


def is_idle(size, me):
    """Tell whether a rank's group is not complete; if so, make the two groups that the others make."""
    if me < 4 // size * size:
        return False
    for _ in range(2):
        group_comm(size, me)
    return True


def call_dispatch(x, expert, place, weight, experts, capacity, size, grad, me):
    """Call `dispatch` on a rank: its experts' tokens, the gradient of its own tokens, and those of later calls; and the arguments."""
    dispatch = student("dispatch")
    if is_idle(size, me):
        return None
    group, given = group_comm(size, me), Tensor(x, requires_grad=True)
    out = require_tensor(dispatch(given, Route(expert, place, Tensor(weight), experts, capacity), group), "dispatch")
    *ways, gates = second_route(expert, place, weight)
    other = Route(*ways, Tensor(gates), experts, capacity)
    twin = group_comm(size, me)  # with the same ranks
    again = require_tensor(dispatch(Tensor(2 * x[::-1]), other, twin), "dispatch")  # before backward, without a gradient
    goes_back = grad is not None and out.requires_grad and out.shape == grad.shape
    backward_shared_input(out, given, grad)
    later = Tensor(2 * x[::-1], requires_grad=grad is not None)
    if goes_back:
        dispatch(later, other, group).backward(grad)
    return out.data, given.grad, (again.data, later.grad), (x, expert, place, weight, grad)


def call_combine(y, expert, place, weight, experts, capacity, size, grad, me):
    """Call `combine` on a rank: its tokens, the gradients of its experts' outputs and of the gates, and as in `call_dispatch`."""
    combine = student("combine")
    if is_idle(size, me):
        return None
    group, given, gates = group_comm(size, me), Tensor(y, requires_grad=True), Tensor(weight, requires_grad=True)
    out = require_tensor(combine(given, Route(expert, place, gates, experts, capacity), group), "combine")
    *ways, second = second_route(expert, place, weight)
    twin = group_comm(size, me)  # with the same ranks
    again = require_tensor(combine(Tensor(2 * y), Route(*ways, Tensor(second), experts, capacity), twin), "combine")
    goes_back = grad is not None and out.requires_grad and out.shape == grad.shape
    backward_shared_input(out, given, grad)
    later = Tensor(2 * y, requires_grad=grad is not None)
    if goes_back:
        combine(later, Route(*ways, Tensor(second, requires_grad=True), experts, capacity), group).backward(grad)
    return out.data, given.grad, gates.grad, (again.data, later.grad), (y, expert, place, weight, grad)


def forward_piece(piece, arguments, route_of, size, me):
    """Run a function on a rank as one piece of a layer: keep its result for `backward_piece`, and return its values.

    `arguments` are the arrays whose gradients are needed, `route_of` the route arguments that the function needs as well.
    """
    given = [Tensor(array, requires_grad=True) for array in arguments]
    if piece == "route":
        found = student("route")(*given, **route_of)
        if not isinstance(found, Route):
            raise TypeError(f"route must return a Route; got {type(found).__name__}.")
        out = require_tensor(found.weight, "Route.weight: route")
        rest = *require_arrays(found), found.experts, found.capacity
    else:
        weight = given[1] if piece == "combine" else Tensor(route_of["weight"])
        there, rest = Route(**{**route_of, "weight": weight}), ()
        out = require_tensor(student(piece)(given[0], there, group_comm(size, me)), piece)
    get_ipython().user_ns["trial"] = {**(student("trial") if piece != "route" else {}), piece: (given, out)}
    return out.data, *rest


def backward_piece(piece, grad, me):
    """Gradients of the inputs of `forward_piece`, given the gradient of its result."""
    trial = student("trial")
    given, out = trial[piece]
    if out.requires_grad:
        out.backward(grad)
    return [t.grad for t in given]
