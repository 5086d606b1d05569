"""Clipping of the gradient norm on a grid, with the student's `clip_gradients`.

`clip_gradients` knows one group, over which each gradient is either replicated or sharded. On a grid, gradients are sharded over different
groups: columns over tp, experts over dp and cp, fully sharded parameters over dp, cp and perhaps tp. So there is a call for each group, and
the squares of their norms add up to the square of the norm, also over the stages of a pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from course_lib import students
from course_lib.autograd import Module, Parameter, Sequential
from course_lib.gpt.model.block import kinds
from course_lib.gpt.model.build_model import required_functions
from course_lib.placement import Kind, replicated, sharded


class SamePlacement(Module):
    """Parameters with the same placement, as a module for `kinds`."""

    def __init__(self, kind: Kind, parameters: Iterable[Parameter]):
        self.kind, self.parts = kind, list(parameters)


def clip_whole(module: Module, most: float, comm: object) -> float:
    """Do the work of `clip_gradients` on a rank that has all gradients; no communication."""
    found = [p for _, p, _ in kinds(module) if p.grad is not None]
    length = math.sqrt(sum(np.sum(p.grad.astype(np.float64) ** 2) for p in found))
    if length > most:
        for p in found:
            p.grad = p.grad * p.dtype.type(most / length)
    return length


class Clipping:
    """Norm of all gradients of a trainer's model, and their scaling; collective.

    Parameters
    ----------
    trainer : Trainer

    Attributes
    ----------
    parts : list of (Module, Communicator)
        All gradients of this rank, by the group over which they are sharded.
    """

    def __init__(self, trainer):
        s, self.trainer = trainer.settings, trainer
        student = "clip_gradients" in required_functions(s)
        self._clip = students.get(trainer.functions, "clip_gradients") if student else clip_whole
        self._pieces: list[
            tuple[Parameter, np.ndarray, Parameter, Parameter]
        ] = []  # a shard, which of it is replicated over tp, both parts
        self.parts = self._sharded_parts() if s.fsdp else self._parts()
        self._lengths: list[float] = []

    def squared_norm(self) -> float:
        """Squared norm of the gradients of this rank's pipeline stage: the same on all ranks of the stage."""
        for p, some, one, other in self._pieces:
            one.grad, other.grad = (None, None) if p.grad is None else (p.grad[some], p.grad[~some])
        self._lengths = [self._clip(module, math.inf, comm) for module, comm in self.parts]
        return sum(length**2 for length in self._lengths)

    def clip(self, norm: float, most: float) -> None:
        """Scale all gradients so that their norm, which is `norm`, becomes `most`; after `squared_norm`."""
        if norm > most:
            for (module, comm), length in zip(self.parts, self._lengths, strict=True):
                self._clip(module, most * (length / norm), comm)
        for p, some, one, other in self._pieces:
            if norm > most and p.grad is not None:
                p.grad = np.empty_like(p.grad)
                p.grad[some], p.grad[~some] = one.grad, other.grad
            one.grad = other.grad = None

    def _parts(self) -> list[tuple[Module, object]]:
        groups, entries = self.trainer.groups, [entry for layer in self.trainer.parameter_infos for entry in layer]
        layers = [
            SamePlacement(replicated, (e.parameter for e in entries if e.kind == replicated and not e.expert)),
            SamePlacement(sharded(0), (e.parameter for e in entries if e.kind != replicated)),
        ]
        found: list[tuple[Module, object]] = [(Sequential(*layers), groups.tp)]
        experts = [e.parameter for e in entries if e.expert]
        return [*found, (SamePlacement(sharded(0), experts), groups.replicas)] if experts else found

    def _sharded_parts(self) -> list[tuple[Module, object]]:
        """As `_parts`, if the model is fully sharded: a shard may have both, parameters that are sharded over tp and others."""
        trainer, groups, shards = self.trainer, self.trainer.groups, self.trainer.trainable_parameters()
        if trainer.settings.tp == 1:
            return [(SamePlacement(sharded(0), shards), groups.replicas)]
        for p, flat, layer in zip(shards, trainer.flat_buffers, trainer.parameter_infos, strict=True):
            whole = flat.join([np.full(entry.shape, entry.kind == replicated) for entry in layer])
            some = np.split(whole, groups.replicas.Get_size())[groups.replicas.Get_rank()] > 0
            self._pieces.append((p, some, *(Parameter(np.empty(0, p.dtype)) for _ in range(2))))
        one, other = ([pieces[i] for pieces in self._pieces] for i in (2, 3))
        return [(SamePlacement(sharded(0), one), groups.replicas), (SamePlacement(sharded(0), other), groups.stage)]
