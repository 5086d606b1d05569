"""Trainer: one rank's part of GPT training on any grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from course_lib import memory, students
from course_lib.autograd import Adam, Parameter, Sequential
from course_lib.gpt.fsdp.flat_buffer import FlatBuffer
from course_lib.gpt.model.block import kinds
from course_lib.gpt.model.build_model import Groups, build_layers, local_positions, loss_for, required_functions
from course_lib.gpt.model.experts import MixtureOfExperts
from course_lib.gpt.model.stage import Stage
from course_lib.gpt.settings import Settings
from course_lib.gpt.text import sample_batch
from course_lib.gpt.training.clipping import Clipping
from course_lib.placement import Kind

WARMUP_STEPS = 20  # steps in which the learning rate rises


class Diverged(ArithmeticError):
    """Loss or gradients are no longer finite; the message says in which step."""


class ParameterInfo:
    """A parameter of this rank.

    Attributes
    ----------
    name : str
        Prefixed with the number of its layer in the whole model: the same on any grid.
    parameter : Parameter
    kind : Kind
        Placement over the tensor parallel ranks.
    expert : bool
        Whether it is sharded along dimension 0 over the data and context parallel ranks.
    shape : tuple of int
        Shape on this rank, before fully sharded data parallelism shards it.
    """

    def __init__(self, name: str, parameter: Parameter, kind: Kind, expert: bool):
        self.name, self.parameter, self.kind, self.expert, self.shape = name, parameter, kind, expert, parameter.shape


class Trainer:
    """A model in training; its methods are collective.

    Parameters
    ----------
    settings : Settings
    functions : object
        The student's functions, see `students.load`.
    comm : Communicator
        As many ranks as the grid has.
    text : numpy.ndarray
        uint8.

    Attributes
    ----------
    step : int
        Number of steps taken; it also determines which texts come next.
    losses : list of float
        Loss of each step, the same on all ranks.
    norm : float
        Norm of all gradients of the last step, before clipping; the same on all ranks.
    parameter_infos : list of list of ParameterInfo
        This rank's parameters, layer by layer.
    flat_buffers : list of FlatBuffer
        Layout of each layer's parameters in a flat array, which the data and context parallel ranks may share.
    groups : Groups
    clipping : Clipping
    positions : numpy.ndarray or None
        Positions of each text whose tokens this rank has; None if it has all.
    optimizer : Adam
    shapes : dict of str to tuple
        Shapes of the whole model's arrays, once they have been asked for, see `full_state`.

    Raises
    ------
    students.MissingFunction
        A function that the grid needs is missing.
    """

    def __init__(self, settings: Settings, functions: object, comm: object, text: np.ndarray):
        self.settings, self.functions, self.text, self.step, self.losses = settings, functions, text, 0, []
        self.norm, self._backwards_done = 0.0, 0
        for name in required_functions(settings):
            students.get(functions, name)
        memory.reuse_freed()
        self.groups = groups = Groups(comm, settings)
        s, own = settings, build_layers(settings, functions, groups)
        self.parameter_infos = list(_parameter_infos(own, _first_layer(s, groups)))
        self.model = Sequential(*own)
        self.stage = Stage(own, s.width, loss=loss_for(s, functions, groups), share=s.tp if s.sequence else 1)
        self.flat_buffers = [FlatBuffer([entry.parameter.data for entry in layer], s.replicas) for layer in self.parameter_infos]
        if s.fsdp:
            self.stage.layers = [self._fully_sharded()]
            self.stage.backward = partial(self._backward_with_sync, self.stage.backward)
        self.optimizer = Adam(self.trainable_parameters(), s.lr)
        self.clipping, self.positions = Clipping(self), local_positions(s, functions, groups)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def trainable_parameters(self) -> list[Parameter]:
        """Parameters that the optimizer updates."""
        return self.model.parameters()

    def train_step(self) -> float:
        """Take a step; return the mean loss over all ranks, before it.

        Raises
        ------
        Diverged
            The loss or the gradients are not finite. All ranks raise it, before the parameters change.
        """
        s, groups, comm = self.settings, self.groups, self.groups.everyone
        tokens, labels = sample_batch(self.text, self.step, s.batch, s.length, s.seed)
        rank, each = groups.dp.Get_rank(), s.batch // s.dp
        mine = slice(rank * each, (rank + 1) * each)
        mine = mine if self.positions is None else (mine, self.positions)
        parts = zip(np.split(tokens[mine], s.micro_batches), np.split(labels[mine], s.micro_batches), strict=True)
        self.optimizer.zero_grad()
        self.stage.done.clear()
        self._backwards_done = 0
        loss = self._schedule()(self.stage, list(parts), groups.pp)
        self._average_gradients()
        numbers = np.array([(loss or 0.0) / (s.replicas * s.tp), self._squared_norm()])
        total = np.empty(2)
        comm.Allreduce(numbers, total)
        if not np.isfinite(total).all():
            raise Diverged(
                f"in step {self.step} the loss is {total[0]:.3g} and the gradient norm {np.sqrt(total[1]):.3g}: training has diverged. "
                "Usually the learning rate is too large."
            )
        self.norm = float(np.sqrt(total[1]))
        self.clipping.clip(self.norm, s.clip)
        self.optimizer.lr = s.lr * min(1.0, (self.step + 1) / WARMUP_STEPS)
        self.optimizer.step()
        self.step += 1
        self.losses.append(float(total[0]))
        return self.losses[-1]

    def _schedule(self) -> Callable:
        if self.settings.pp == 1:
            return _sequential_step
        name = "gpipe_step" if self.settings.schedule == "gpipe" else "one_forward_one_backward_step"
        return students.get(self.functions, name)

    def _fully_sharded(self):
        """Wrap the model with the student's wrapper; with sequence parallelism, gradients of replicated parameters are reduced first."""
        given, s, groups, functions = students.get(self.functions, "FullyShardedDataParallel"), self.settings, self.groups, self.functions

        class Sharded(given):
            def after(self, i, back):
                if s.sequence and back and self.sync:
                    students.get(functions, "reduce_norm_gradients")(own[i], groups.tp)
                super().after(i, back)

        own = [layer for _, layer in self.model.children()]
        self.model = Sharded(self.model, groups.replicas)
        return self.model

    def _backward_with_sync(self, backward: Callable, k: int, grad: object) -> object:
        """Run a stage's backward; if the model is fully sharded, gradients are reduced with the last micro-batch to go backward."""
        self._backwards_done += 1
        self.model.sync = self._backwards_done == self.settings.micro_batches
        return backward(k, grad)

    def _average_gradients(self) -> None:
        """Average gradients over the data and context parallel ranks; the experts' gradients are only divided."""
        s, groups = self.settings, self.groups
        if s.fsdp:
            return
        if s.sequence:
            students.get(self.functions, "reduce_norm_gradients")(self.model, groups.tp)
        if s.replicas == 1:
            return
        shared = [entry.parameter for layer in self.parameter_infos for entry in layer if not entry.expert]
        flat = FlatBuffer([p.data for p in shared], 1)
        mine = flat.join([p.grad for p in shared])
        total = np.empty_like(mine)
        groups.replicas.Allreduce(mine, total)
        total /= total.dtype.type(s.replicas)
        for p, grad in zip(shared, flat.cut(total), strict=True):
            p.grad = grad
        for layer in self.parameter_infos:
            for entry in layer:
                if entry.expert and entry.parameter.grad is not None:
                    entry.parameter.grad = entry.parameter.grad / entry.parameter.dtype.type(s.replicas)

    def _squared_norm(self) -> float:
        """This rank's share of the squared norm of all gradients; collective."""
        return self.clipping.squared_norm() / (self.settings.replicas * self.settings.tp)


def _first_layer(settings: Settings, groups: Groups) -> int:
    """Number of this rank's first layer in the whole model."""
    stage = groups.pp.Get_rank()
    return 0 if stage == 0 else 1 + stage * settings.depth // settings.pp


def _parameter_infos(own: list, first: int) -> Iterator[list[ParameterInfo]]:
    for i, layer in enumerate(own, first):
        experts = getattr(layer, "experts", None)
        sharded = {id(experts.w1), id(experts.w2)} if isinstance(experts, MixtureOfExperts) else set()
        found = {id(p): ParameterInfo(f"{i}.{name}", p, kind, id(p) in sharded) for name, p, kind in kinds(layer)}
        yield [found[id(p)] for p in layer.parameters()]


def _sequential_step(stage: Stage, micro_batches: list, comm: object) -> float:
    """Take a step without a pipeline."""
    loss = 0.0
    for k, (tokens, labels) in enumerate(micro_batches):
        loss += stage.forward(k, tokens, labels) / len(micro_batches)
        stage.backward(k, 1 / len(micro_batches))
    return loss
