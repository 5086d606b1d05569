"""Functions that the check of part 26's wrapper runs on the ranks; see `fsdp.check`."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from course_lib import memory
from course_lib.autograd import SGD, Linear, Tensor, no_grad
from course_lib.check.fsdp.reference import FsdpTestModel, momentum_of, twin_model
from course_lib.collectives.progress import operations
from course_lib.engine import traffic_gates
from course_lib.engine.namespace import get_ipython, student
from course_lib.gpt.fsdp.wrapping import units


def wrap_model(values, shape, dtype, place, gated, lead):
    """Wrap a model with these parameters in this rank's group. Its gates record open requests and whole blocks.

    At some gates, a rank receives the number of the leading rank, which is a gate ahead: the product changes the block's result.
    """
    everyone, FullyShardedDataParallel = student("everyone"), student("FullyShardedDataParallel")
    notes, meets, switched = [], [], []

    def gate():
        notes.append((operations.progress_state.open_requests, [i for i, (_, own) in enumerate(blocks) if all(p.data.size for p in own)]))
        number, theirs, others = np.array([traffic_gates.pass_gate()]), np.ones(1), between.Get_size()
        if meets.pop(0):
            if place[1] == lead:
                for other in set(range(others)) - {lead}:
                    between.Send(number, dest=other)
            else:
                between.Recv(theirs, source=lead)
        return float(number[0] * theirs[0])

    model = FsdpTestModel(shape, np.dtype(dtype), gate if gated else None)
    blocks, _ = units(model)
    for p, value in zip(model.parameters(), values, strict=True):
        p.data = value.copy()
    between = everyone.Split(color=place[0], key=place[1])
    if not gated:  # a model without blocks is all rest
        FullyShardedDataParallel(Linear(2, 2, dtype=np.dtype(dtype)), between)(Tensor(np.ones((1, 2), dtype))).sum().backward()
        make_twin(FullyShardedDataParallel, everyone.Split(color=place[0], key=place[1]), dtype)
    wrapped = FullyShardedDataParallel(model, everyone.Split(color=place[0], key=place[1]))
    get_ipython().user_ns["trial"] = wrapped, SGD(wrapped.parameters(), 0.1, momentum_of(shape)), model, (notes, meets, switched)


def make_twin(FullyShardedDataParallel, comm, dtype):
    """Wrap another model, which is used between the steps of the first one."""
    model = twin_model(np.dtype(dtype))
    get_ipython().user_ns["twin"] = FullyShardedDataParallel(model, comm)


def run_twin_forward(x):
    """Run the other model forward; `run_twin_backward` uses it later."""
    twin = student("twin")
    get_ipython().user_ns["twin_output"] = twin(Tensor(x))


def run_twin_backward():
    """Run the other model backward; return its output and the gradients of its shards."""
    twin = student("twin")
    output = student("twin_output")
    output.sum().backward()
    return output.data, [None if p.grad is None else np.array(p.grad) for p in twin.parameters()]


def run_micro_batch(x, target, sync):
    """Run a micro-batch forward and backward: the output, the input's gradient, and the number of whole parameters then."""
    trial = student("trial")
    wrapped, _, model, (*_, switched) = trial
    given = Tensor(x, requires_grad=True)
    out = wrapped(given)
    if switched or not sync:  # it is True at first; only backward may look at it
        wrapped.sync = sync
        switched.append(sync)
    if not isinstance(out, Tensor):
        raise TypeError(f"FullyShardedDataParallel.forward must return the module's output, a Tensor; got {out!r}.")
    (out * target).sum().backward()
    return out.data, given.grad, sum(p.data.size > 0 for p in model.parameters())


def run_step(batches, train, unused, syncs, meets, watched):
    """Take the micro-batches of a step; `fetch_results` returns the results once memory has been measured."""
    trial = student("trial")
    wrapped, optimizer, model, (notes, met, _) = trial
    model.unused, before = unused, operations.progress_state.open_requests
    notes.clear()
    met[:] = meets
    optimizer.zero_grad()
    with memory.watch() if watched else nullcontext() as account:
        found = [run_micro_batch(x, target, sync) for (x, target), sync in zip(batches, syncs, strict=True)]
    grads = [p.grad if p.grad is None or not train else np.array(p.grad) for p in wrapped.parameters()]
    if train:
        optimizer.step()
    noted, peak = [(open_now - before, here) for open_now, here in notes], account.true_peak if watched else 0
    left = operations.progress_state.open_requests - before
    get_ipython().user_ns["found"] = found, grads, [p.data for p in wrapped.parameters()], noted, left, peak


def fetch_results():
    """Results of the last step: outputs, gradients before the optimizer's step, parameters after it, gate records, and so on."""
    return get_ipython().user_ns.pop("found")


def run_forward_only(x, dropped, meets, watched):
    """Run a forward pass under `no_grad`, or (`dropped`) without backward, then halving the parameters.

    Returns
    -------
    tuple
        The output; the number of whole parameters; the gate records; the gathers in flight;
        and the peak of memory in bytes, if it is `watched`.
    """
    trial = student("trial")
    wrapped, _, model, (notes, met, _) = trial
    before = operations.progress_state.open_requests
    notes.clear()
    met[:] = meets
    if dropped:
        out = wrapped(Tensor(x)).data
        for p in wrapped.parameters():
            p.data *= p.dtype.type(0.5)
        return out, 0, [], 0, 0
    with no_grad(), memory.watch() if watched else nullcontext() as account:
        out = wrapped(Tensor(x)).data
    left = operations.progress_state.open_requests - before
    whole = sum(p.data.size > 0 for p in model.parameters())
    return out, whole, [(now - before, blocks) for now, blocks in notes], left, account.true_peak if watched else 0


def run_skipping(batches, unused):
    """A micro-batch of all blocks without `sync`, and one with it that skips some: p.grad of the skipped ones, before and after."""
    trial = student("trial")
    _, _, model, _ = trial
    own = [p for i, (_, own) in enumerate(units(model)[0]) if i in unused for p in own]
    found = []
    for (x, target), sync in zip(batches, (False, True), strict=True):
        model.unused = unused if sync else []
        run_micro_batch(x, target, sync)
        found.append([None if p.grad is None else p.grad.copy() for p in own])
    return found


def call_clip_gradients(grads, most, norm):
    """Clip these gradients; return the norm and the clipped gradients."""
    trial = student("trial")
    if len(trial[0].parameters()) != len(grads):
        raise ValueError(
            f"parameters() gives {len(trial[0].parameters())} arrays, but there are {len(grads)} shards, including that of the rest."
        )
    for p, grad in zip(trial[0].parameters(), grads, strict=True):
        p.grad = None if grad is None else grad.copy()
    total = trial[0].clip_gradients(most, norm)
    return total, [None if p.grad is None else np.array(p.grad) for p in trial[0].parameters()]
