"""Functions that part 37's checks run on the ranks; see `survival.check` and `survival.training`.

They import the communicator themselves: that starts MPI, which the notebook's own process does not need.
"""

from __future__ import annotations

import itertools
import time

from course_lib.autograd import SGD, Adam, Linear, Module, Parameter, Sequential, Tanh
from course_lib.engine.namespace import group_of, student
from course_lib.replica import Replica

OLD_VALUE = (7, 8, 9)  # a value of a round that is not one of `agree`'s


def make_optimizer(name, parameters, settings):
    """Make an optimizer by name."""
    return {"SGD": SGD, "Adam": Adam}[name](parameters, **settings)


class Weights(Module):
    """A module that is nothing but its parameters."""

    def __init__(self, arrays):
        self.weights = [Parameter(array) for array in arrays]


def run_diloco(place, weights, grads, every, inner, outer):
    """Take steps with given gradients; return the parameters after each step."""
    model, found = Weights([w.copy() for w in weights]), []
    comm = group_of(place)
    optimizers = [make_optimizer(name, model.parameters(), settings) for name, settings in (inner, outer)]
    trainer = student("DiLoCo")(model, *optimizers, every, comm)
    for step in grads:
        for p, grad in zip(model.parameters(), step, strict=True):
            p.grad = grad.copy()
        trainer.step()
        found.append([p.data.copy() for p in model.parameters()])
    return found


def hear_rounds(place, keys, values, enough, deadline, patience):
    """Call `hear` for one key after the other; return what was heard, the last one perhaps "TimeoutError", and the first one's seconds."""
    from course_lib.collectives import Messenger

    comm = group_of(place)
    marks, mail, found, took, began = Messenger(comm), Messenger(comm), [], 0.0, time.monotonic()
    for key, value in zip(keys, values, strict=True):
        marks.send(marks.rank, "mark", key)
        try:
            heard = student("hear")(mail, tuple(key), value, enough, deadline, patience)
        except TimeoutError:
            found.append("TimeoutError")
            took = took or time.monotonic() - began
            break
        took = took or time.monotonic() - began
        found.append(heard if heard is None else {int(r): heard[r] for r in heard})
    return found, took


def agree_often(place, proposals, patience):
    """Call `agree` for one step after the other.

    Returns the answers, the last one perhaps "TimeoutError"; the seconds to the first one; and what was sent last.
    """
    from course_lib.collectives import Messenger
    from course_lib.collectives.transport.messenger import Message

    class Recorder(Messenger):
        last = None

        def send(self, dest, topic, key, value=None):
            self.last = value
            super().send(dest, topic, key, value)

    comm = group_of(place)
    marks, mail, found, took, began = Messenger(comm), Recorder(comm), [], 0.0, time.monotonic()
    for step, proposal in enumerate(proposals):
        marks.send(marks.rank, "mark", step)
        for other, number in itertools.product(range(mail.size), (0, 1)):  # of rounds that are over
            if other != mail.rank:
                mail.keep(Message(other, "round", (step, number), OLD_VALUE))
        try:
            answer = student("agree")(mail, step, tuple(proposal), patience)
        except TimeoutError:
            found.append("TimeoutError")
            break
        took = took or time.monotonic() - began
        found.append(answer)
    return found, took, mail.last


def build_replica(rank, ranks, weights, x, y, every, batch, seed):
    """Make a small replica with these weights."""
    model = Sequential(Linear(weights[0].shape[0], weights[0].shape[1]), Tanh(), Linear(*weights[2].shape))
    for p, weight in zip(model.parameters(), weights, strict=True):
        p.data = weight.copy()
    return Replica(model, x, y, rank=rank, ranks=ranks, every=every, batch=batch, inner_lr=0.05, seed=seed)


def snapshot(replica):
    """Copy a replica's state as plain data."""
    return {
        "weights": [p.data.copy() for p in replica.model.parameters()],
        "inner": {str(i): (int(t), m.copy(), v.copy()) for i, (t, m, v) in sorted(replica.inner.state.items())},
        "outer": {str(i): v.copy() for i, v in sorted(replica.outer.velocity.items())},
        "position": int(replica.position),
        "random": repr(replica.random.bit_generator.state),
    }


def train_on(settings, steps, deadline, patience, linger):
    """Train until `steps` outer steps are done; return for each turn the step, the state, who was in, the next step, and the state then."""
    from course_lib.collectives import Communicator, Messenger

    comm = Communicator()
    marks, mail, found = Messenger(comm), Messenger(comm), []
    replica = build_replica(comm.Get_rank(), comm.Get_size(), **settings)
    trainer = student("FaultTolerantDiLoCo")(replica, mail, deadline, patience)
    while trainer.step < steps and len(found) < 4 * steps:
        marks.send(marks.rank, "mark", len(found))
        found.append([int(trainer.step), snapshot(replica)])
        replica.inner_steps()
        try:
            who = trainer.outer_step()
        except TimeoutError:
            return found
        found[-1] += [who, int(trainer.step), snapshot(replica)]
    for _ in mail.listen("nothing", linger):
        pass
    return found
