"""Functions that part 37's checks run on the ranks; see `survival.check` and `survival.training`.

They import the communicator themselves: that starts MPI, which the notebook's own process does not need.
"""

from __future__ import annotations

import copy
import itertools
import time

import numpy as np

from course_lib.autograd import SGD, Adam, Linear, Module, Parameter, Sequential, Tanh
from course_lib.check.cases.virtual_group import run_virtually
from course_lib.engine.namespace import get_ipython, group_of, student
from course_lib.replica import Replica

LONG = 1e4  # virtual seconds
OLD_VALUE = (7, 8, 9)  # a value of a round that is not one of `agree`'s


def make_optimizer(name, parameters, settings):
    """Make an optimizer by name."""
    return {"SGD": SGD, "Adam": Adam}[name](parameters, **settings)


class Weights(Module):
    """A module that is nothing but its parameters."""

    def __init__(self, arrays):
        self.weights = [Parameter(array) for array in arrays]


def build_diloco(trainings):
    """Make models with the student's `DiLoCo`, each on a communicator of its own."""
    made = []
    for training in trainings:
        model = Weights([w.copy() for w in training["weights"]])
        optimizers = [make_optimizer(name, model.parameters(), settings) for name, settings in (training["inner"], training["outer"])]
        made.append((model, student("DiLoCo")(model, *optimizers, training["every"], group_of(training["place"]))))
    get_ipython().user_ns["trial"] = made


def step_diloco(which, gradients):
    """Take steps with given gradients with one of the trainers; return the parameters after each step."""
    model, trainer = student("trial")[which]
    found = []
    with np.errstate(invalid="ignore"):  # inf - inf
        for step in gradients:
            for p, grad in zip(model.parameters(), step, strict=True):
                p.grad = grad
            trainer.step()
            found.append([p.data.copy() for p in model.parameters()])
    return found


def hear_rounds(place, keys, values, enough, deadline, patience, goes_on=False):
    """Call `hear` for one key after the other; after a TimeoutError, only with `goes_on`.

    Returns what was heard, or "TimeoutError"; the same once more at the end; the values after each
    call; in which round which message was put back; and the first call's seconds. The values are
    overwritten after each call, as a caller with a buffer does.
    """
    from course_lib.collectives import Messenger

    class Recorder(Messenger):
        def keep(self, message):
            kept.append((tuple(key), tuple(message.key)))
            super().keep(message)

    mail, found, results, after, kept, took, began = Recorder(group_of(place)), [], [], [], [], 0.0, time.monotonic()
    for key, value in zip(keys, values, strict=True):
        try:
            heard = student("hear")(mail, tuple(key), value, enough, deadline, patience)
        except TimeoutError:
            heard = "TimeoutError"
        took = took or time.monotonic() - began
        if isinstance(heard, dict):
            heard_before = {int(r): copy.copy(heard[r]) for r in heard}
        else:
            heard_before = heard
        found.append(heard_before)
        results.append(heard)
        after.append(copy.deepcopy(value))
        if isinstance(value, np.ndarray):
            value[...] = 77
        if isinstance(heard, str) and not goes_on:
            break
    later = [{int(r): heard[r] for r in heard} if isinstance(heard, dict) else heard for heard in results]
    return found, later, after, kept, took


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

    mail, found, took, began = Recorder(group_of(place)), [], 0.0, time.monotonic()
    for step, proposal in enumerate(proposals):
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


def train_on(key, settings, steps, deadline, patience, linger):
    """Train until `steps` outer steps are done, as rank `key` of all; see `train`."""
    from course_lib.collectives import Communicator

    return train(Communicator().Split(color=0, key=key), settings, steps, deadline, patience, linger)


def train(comm, settings, steps, deadline, patience, linger):
    """Train until `steps` outer steps are done.

    Returns for each turn the step, the state, who was in, the next step, and the state then; the last one has two of these if it ended
    with a TimeoutError.
    """
    from course_lib.collectives import Messenger

    mail, found = Messenger(comm), []
    replica = build_replica(comm.Get_rank(), comm.Get_size(), **settings)
    trainer = student("FaultTolerantDiLoCo")(replica, mail, deadline, patience)
    while trainer.step < steps and len(found) < 4 * steps:
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


def train_virtually(cases, steps, seed, deadline, patience, linger):
    """Train on virtual ranks, of which some are silent from the first round on; see `train`."""
    found = []
    for case in cases:
        each = [case["settings"] | {"seed": own} for own in case["seeds"]]

        def trained(comm, rank, each=each):
            return train(comm, each[rank], steps, deadline, patience, linger)

        outcomes = run_virtually(len(each), trained, seed, _silences(case["silent"]))
        found.append([outcome[0] for outcome in outcomes])
    return found


def agree_virtually(cases, seed, patience):
    """Call `agree` once on each of some virtual ranks, and return the answers.

    In a case, `silent` has the ranks that are silent from the first round on, and `late` the
    messages that come when all is over: number of the round, sender and receiver.
    """
    found = []
    for case in cases:

        def agreed(comm, rank, case=case):
            mail = _late_messenger(comm, case.get("late", ()))
            try:
                return student("agree")(mail, 0, tuple(case["proposals"][rank]), patience)
            except TimeoutError:
                return "TimeoutError"

        plan = _silences(case.get("silent", ()))
        outcomes = run_virtually(len(case["proposals"]), agreed, seed, plan)
        found.append([outcome[0] for outcome in outcomes])
    return found


def _late_messenger(comm, late):
    """Make a messenger that does not send some messages of step 0; see `agree_virtually`."""
    from course_lib.collectives import Messenger

    held = {((0, number), sender, receiver) for number, sender, receiver in late}

    class LateMessenger(Messenger):
        def send(self, dest, topic, key, value=None):
            is_round = topic == "round" and isinstance(key, tuple)
            if not is_round or (key, self.rank, dest) not in held:
                super().send(dest, topic, key, value)

    return LateMessenger(comm)


def _silences(ranks):
    """Return a function that plans an endless silence of these ranks."""

    def plan(network):
        network.plan_rounds_only("join")
        for rank in ranks:
            network.plan_silence(rank, LONG, round=(0, 0))

    return plan
