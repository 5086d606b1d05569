"""Functions that the checks of part 31 run on the ranks, with the student's functions; see `precision.check` and `precision.scaler`."""

from __future__ import annotations

import numpy as np

from course_lib.autograd import SGD, Adam, Parameter, Tensor
from course_lib.engine.namespace import student


def call_exchange(name, arrays, dtype, place):
    """Call `gather_as` or `reduce_as` with one array refilled from each of these; return the results, and the array after the last call."""
    exchange, everyone = student(name), student("everyone")
    comm, own, found = everyone.Split(color=place[0], key=place[1]), np.empty_like(arrays[0]), []
    for values in arrays:
        own[:] = values
        result = exchange(own, dtype, comm)
        found.append(result)
    found = [result.copy() if isinstance(result, np.ndarray) else result for result in found]  # after all calls: each has its own
    if isinstance(result, np.ndarray) and result.flags.writeable:
        result += 1  # the caller may do as it likes with the result
    return found, own


def call_steps(shard, gradients, dtype, place):
    """Train a shard with these gradients of its own: what was gathered before each step, and the shard in the end."""
    gather_as, everyone = student("gather_as"), student("everyone")
    comm, master, found = everyone.Split(color=place[0], key=place[1]), Parameter(shard), []
    optimizer = SGD([master], 1.0)
    for gradient in gradients:
        found.append(gather_as(master.data, dtype, comm).copy())
        master.grad = gradient
        optimizer.step()
    return found, master.data


def call_scaler(values, optimizer, settings, steps, places):
    """Take steps with a LossScaler on a grid of ranks.

    Parameters
    ----------
    values : list of numpy.ndarray
        This rank's parameters.
    optimizer : str
        "SGD" or "Adam".
    settings : dict
        Arguments of LossScaler besides the groups.
    steps : list of dict
        "grads", scaled; "most", or None; "unscale": how many times to call it before step.
    places : list of (int, int)
        Color and key of this rank's group along each axis.

    Returns
    -------
    list of tuple
        For each step: what each `unscale` returned, the gradients after the last one, what `step` returned, the parameters, the gradients
        that the optimizer got, the factor before and after `update`.
    """
    LossScaler, everyone = student("LossScaler"), student("everyone")
    comms = [everyone.Split(color=color, key=key) for color, key in places]
    parameters, found = [Parameter(v.copy()) for v in values], []
    rule = SGD(parameters, 0.1, 0.5) if optimizer == "SGD" else Adam(parameters, 0.01)
    scaler = LossScaler(comms, **settings)
    optimizer_step, stepped = rule.step, []

    def step_and_note():
        stepped[:] = [None if p.grad is None else np.array(p.grad) for p in parameters]
        optimizer_step()

    rule.step = step_and_note
    for step in steps:
        stepped[:] = []
        for p, grad in zip(parameters, step["grads"], strict=True):
            p.grad = None if grad is None else grad.copy()
        norms = [scaler.unscale(rule) for _ in range(step["unscale"])]
        grads = [None if p.grad is None else np.array(p.grad) for p in parameters]
        taken = scaler.step(rule) if step["most"] is None else scaler.step(rule, most=step["most"])
        factor = scaler.factor
        scaler.update()
        found.append((norms, grads, taken, [p.data.copy() for p in parameters], list(stepped), factor, scaler.factor))
    return found


def call_scale(weights, x, settings):
    """Take two steps with each of several scalers in turn, on losses that are the same on all ranks.

    Returns
    -------
    list of list of tuple
        For each step and each scaler: the factor before it, the scaled loss, the gradient of the
        weight, and what `unscale` returned.
    """
    LossScaler, everyone = student("LossScaler"), student("everyone")
    parameters = [Parameter(weight) for weight in weights]
    optimizers = [SGD([w], 0.0) for w in parameters]
    scalers = [LossScaler([everyone], **own) for own in settings]
    return [_scaled_step(scalers, optimizers, x) for _ in range(2)]


def _scaled_step(scalers, optimizers, x):
    """Take a step with each scaler: all of them scale, then all unscale, and so on."""
    before = []
    for scaler, optimizer, values in zip(scalers, optimizers, x, strict=True):
        factor, w = scaler.factor, optimizer.params[0]
        w.grad = None
        loss = scaler.scale((w * Tensor(values)).sum())
        if not isinstance(loss, Tensor):
            raise TypeError(f"scale must return a Tensor, so that backward can be called on it; got {type(loss).__name__}.")
        value = loss.data.copy()
        loss.backward()
        before.append((factor, np.asarray(value), w.grad.copy()))
    norms = [scaler.unscale(optimizer) for scaler, optimizer in zip(scalers, optimizers, strict=True)]
    for scaler, optimizer in zip(scalers, optimizers, strict=True):
        scaler.step(optimizer)
    for scaler in scalers:
        scaler.update()
    return [(*values, norm) for values, norm in zip(before, norms, strict=True)]
