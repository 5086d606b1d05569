"""Ready-made data parallel wrapper: average gradients over the ranks while backward still runs.

Parameters are grouped into buckets in the order in which their gradients become available. Once a bucket is complete, it is
all-reduced in one exchange, which overlaps with the rest of backward (Li et al., 2020, "PyTorch distributed: experiences on
accelerating data parallel training", section 3.2).
"""

from __future__ import annotations

import numpy as np

from course_lib.autograd import Module, Parameter, Tensor, after_backward
from course_lib.collectives.transport.averaging import AveragedBuffer


class Bucket:
    """Gradients of some parameters, concatenated in one array, with a flag for each whether it has a gradient."""

    def __init__(self, params: list[Parameter], averaged: AveragedBuffer):
        self.params, self.averaged = params, averaged
        cuts, flat = np.cumsum([0, *(p.data.size for p in params)]), averaged.array
        self.views = [flat[a:b].reshape(p.shape) for a, b, p in zip(cuts[:-1], cuts[1:], params, strict=True)]
        self.marks = flat[int(cuts[-1]) :]
        self.reset()

    def reset(self) -> None:
        """Prepare for the next backward, which may write the gradients here."""
        for p, view in zip(self.params, self.views, strict=True):
            p.grad_buffer = view
        self.missing = len(self.params)
        self.marks[...] = 0


class DistributedDataParallel(Module):
    """Train a module on several ranks as a single process would on all their samples.

    All ranks start with rank 0's parameters. After `backward`, each parameter's gradient is the mean over the ranks.

    Parameters
    ----------
    module : Module
        The same on all ranks, except for its values.
    comm : Communicator, optional
        The ranks; all of them by default.
    bucket_bytes : int
        A bucket is closed once it has this many bytes; 0 for one bucket per parameter.
    overlap : bool
        Whether exchanges overlap with backward, or follow it.
    shared : bool
        Whether buckets may use memory shared by all ranks, if all are on one machine (see `collectives.transport.averaging`).

    Notes
    -----
    Running statistics of normalisation layers stay local to each rank; PyTorch broadcasts those of rank 0 by default.
    """

    def __init__(self, module: Module, comm=None, bucket_bytes: int = 16 << 20, overlap: bool = True, shared: bool = True):
        if comm is None:
            from course_lib.collectives import Communicator

            comm = Communicator()
        if not isinstance(module, Module):
            raise TypeError(f"DistributedDataParallel(module): module must be a Module, such as a Linear; got {type(module).__name__}.")
        if not hasattr(comm, "averaged"):
            raise TypeError(f"DistributedDataParallel(module, comm): comm must be a Communicator; got {type(comm).__name__}.")
        self.module, self.comm, self.overlap = module, comm, overlap
        params = module.parameters()
        for p in params:
            comm.Bcast(p.data, root=0)
        self._buckets = []
        for g, group in enumerate(_groups(params[::-1], bucket_bytes)):
            size = sum(p.data.size for p in group) + len(group)
            self._buckets.append(Bucket(group, comm.averaged(group[0].data, size, shared)))
            for i, p in enumerate(group):
                p.register_hook(lambda grad, g=g, i=i: self._gradient_is_final(self._buckets[g], i, grad))
        self._next, self._before, self._waiting = 0, {}, False

    def forward(self, x: Tensor) -> Tensor:
        if self._waiting:  # the last backward did not finish
            self._buckets = [Bucket(bucket.params, bucket.averaged.after_interruption()) for bucket in self._buckets]
            self._next, self._before, self._waiting = 0, {}, False
        return self.module(x)

    def _gradient_is_final(self, bucket: Bucket, i: int, grad):
        """Put a gradient that is final into its bucket."""
        if not self._waiting:
            self._waiting = True
            after_backward(self._finish)
        p = bucket.params[i]
        self._save_earlier_gradient(p)
        if grad is not bucket.views[i]:  # not written there directly
            bucket.views[i][...] = grad
        bucket.marks[i] = 1
        bucket.missing -= 1
        if self.overlap:
            self._start()
        return bucket.views[i]  # the gradient is now a view of the bucket

    def _save_earlier_gradient(self, p: Parameter) -> None:
        """Copy the gradient of an earlier backward if it is in the bucket that is needed now."""
        if p.grad is not None:
            self._before[id(p)], p.grad = p.grad.copy(), None

    def _start(self, all_of_them: bool = False) -> None:
        """Start complete buckets; all ranks start their buckets in the same order."""
        while self._next < len(self._buckets) and (all_of_them or not self._buckets[self._next].missing):
            bucket = self._buckets[self._next]
            if bucket.missing:  # a parameter without a gradient on this rank; another rank may have one
                for p, view, mark in zip(bucket.params, bucket.views, bucket.marks, strict=True):
                    if not mark:
                        self._save_earlier_gradient(p)
                        view[...] = 0
            bucket.averaged.start()
            self._next += 1

    def _finish(self) -> None:
        """Wait for the means, once all gradients are there."""
        self._start(all_of_them=True)
        for bucket in self._buckets:
            bucket.averaged.wait()
            used = (bucket.marks > 0).tolist()
            for p, view, there in zip(bucket.params, bucket.views, used, strict=True):
                before = self._before.get(id(p))
                p.grad = before if not there else view if before is None else before + view
            bucket.reset()
        self._next, self._before, self._waiting = 0, {}, False


def _groups(params: list[Parameter], nbytes: int) -> list[list[Parameter]]:
    """Group parameters in order, by dtype, into buckets of about `nbytes`."""
    groups: list[list[Parameter]] = []
    held = 0
    for p in params:
        if not groups or held >= nbytes or groups[-1][-1].dtype != p.dtype:
            groups.append([])
            held = 0
        groups[-1].append(p)
        held += p.data.nbytes
    return groups
