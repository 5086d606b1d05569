"""Build the layers of one rank of a grid, around the student's functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from course_lib import students
from course_lib.autograd import Module, Tensor
from course_lib.autograd.block_attention import positions
from course_lib.gpt.model.block import Block, no_communication
from course_lib.gpt.model.decoder import Embed, Head, loss_of
from course_lib.gpt.model.experts import MixtureOfExperts
from course_lib.gpt.settings import Settings

BALANCING_LOSS_WEIGHT = 0.01  # weight of the experts' balancing loss (Fedus et al., 2022, section 2.2)


class Groups:
    """Communicators of a rank in a grid; collective.

    Parameters
    ----------
    comm : Communicator
        The ranks of the grid.
    settings : Settings

    Attributes
    ----------
    everyone, dp, pp, cp, tp : Communicator
    replicas : Communicator
        Ranks that see different tokens with the same weights: along dp and cp.
    stage : Communicator
        Ranks of a pipeline stage: along dp, cp and tp.
    ordered : Communicator
        All ranks in another order: by stage, then by tensor parallel rank, with the replicas of each next to each other.
    """

    def __init__(self, comm: object, settings: Settings):
        mesh, rank = settings.mesh, comm.Get_rank()
        self.everyone, self.mesh, self.rank = comm, mesh, rank

        def along(*axes: str) -> object:
            some = mesh.groups(*(axis for axis in axes if axis in mesh.shape))
            return comm.Split(color=next(group for group in some if rank in group)[0], key=rank)

        self.dp, self.pp, self.tp, self.stage = along("dp"), along("pp"), along("tp"), along("dp", "cp", "tp")
        self.cp, self.replicas = (along("cp"), along("dp", "cp")) if settings.cp > 1 else (None, self.dp)
        key = (self.pp.Get_rank() * mesh.tp + self.tp.Get_rank()) * settings.replicas + self.replicas.Get_rank()
        self.ordered = comm.Split(color=0, key=key)


def required_functions(settings: Settings) -> list[str]:
    """List the student's functions that a grid needs.

    >>> required_functions(Settings()), required_functions(Settings(tp=2))
    ([], ['copy_to_group', 'reduce_from_group', 'vocab_parallel_cross_entropy', 'clip_gradients'])
    """
    s, names = settings, []
    if s.tp > 1:
        names += ["gather_sequence", "scatter_sequence", "reduce_norm_gradients"] if s.sequence else ["copy_to_group", "reduce_from_group"]
        names += ["vocab_parallel_cross_entropy"]
    if s.cp > 1:
        names += ["zigzag", "ring_attention"]
    if s.experts:
        names += ["route", "dispatch", "combine"]
    if s.pp > 1:
        names += ["gpipe_step" if s.schedule == "gpipe" else "one_forward_one_backward_step"]
    if s.fsdp:
        names += ["FullyShardedDataParallel"]
    if s.tp > 1 or s.pp > 1 or s.fsdp or (s.experts and s.replicas > 1):  # no rank has the gradients of the whole model
        names += ["clip_gradients"]
    return names


def with_auxiliary_loss(x: Tensor, loss: Tensor, weight: float) -> Tensor:
    """Return x with an auxiliary loss attached: in backward, `loss` receives `weight` as its gradient, whatever x receives."""
    return Tensor.from_operation(x.data, (x, loss), lambda grad: (grad, np.asarray(weight, loss.dtype)))


class ExpertBlock(Block):
    """A `Block` with a mixture of experts instead of its MLP, sharded over the data and context parallel ranks.

    Parameters
    ----------
    settings : Settings
    functions : object
        The student's functions.
    groups : Groups
    random : numpy.random.Generator
    operators : dict
        `comm`, `enter`, `leave`, `recompute_enter` and `core_attention`, as for `Block`.
    """

    def __init__(self, settings: Settings, functions: object, groups: Groups, random: np.random.Generator, operators: dict):
        super().__init__(settings.width, settings.heads, random, **operators)
        del self.up, self.down
        s, share = settings, groups.replicas.Get_size() / settings.micro_batches
        self.experts = MixtureOfExperts(functions, groups.replicas, s.width, 2 * s.width, s.experts, factor=s.capacity, random=random)
        # The balancing loss is a sum over the ranks, the main loss a mean over the ranks and the micro-batches.
        self.weight = BALANCING_LOSS_WEIGHT * share / (groups.tp.Get_size() if s.sequence else 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.leave(self.attend(self.column_parallel(self.qkv, self.norm1(x))), self.comm)
        x = x + self.experts.expert_output(self.norm2(x))
        return with_auxiliary_loss(x, self.experts.balance, self.weight)


def build_layers(settings: Settings, functions: object, groups: Groups) -> list[Module]:
    """Build this rank's layers.

    Parameters
    ----------
    settings : Settings
    functions : object
        The student's functions, see `required_functions`.
    groups : Groups

    Returns
    -------
    list of Module
        As `decoder.layers`: the same seed gives the same weights on any grid.
    """
    s, size, stage = settings, groups.pp.Get_size(), groups.pp.Get_rank()
    operators: dict = dict(comm=None)
    if s.tp > 1:
        enter, leave = ("gather_sequence", "scatter_sequence") if s.sequence else ("copy_to_group", "reduce_from_group")
        enter, leave = students.get(functions, enter), students.get(functions, leave)
        operators = dict(comm=groups.tp, enter=enter, leave=leave, recompute_enter=s.sequence)
    if s.cp > 1:
        operators["core_attention"] = partial(_context_parallel_attention, students.get(functions, "ring_attention"), groups.cp)
    own = range(stage * s.depth // size, (stage + 1) * s.depth // size)
    found: list[Module] = []
    if stage == 0:
        found.append(
            Embed(
                s.sizes,
                np.random.default_rng([s.seed, 0]),
                comm=groups.tp if s.sequence else None,
                positions=local_positions(s, functions, groups),
            )
        )
    for i in own:
        random = np.random.default_rng([s.seed, 1 + i])
        found.append(ExpertBlock(s, functions, groups, random, operators) if s.experts else Block(s.width, s.heads, random, **operators))
    if stage == size - 1:
        random = np.random.default_rng([s.seed, 1 + s.depth])
        found.append(Head(s.sizes, random, operators["comm"], operators.get("enter", no_communication)))
    return found


def local_positions(settings: Settings, functions: object, groups: Groups) -> np.ndarray | None:
    """Positions of a text whose tokens this rank has, by the student's `zigzag`; None if it has all of them."""
    if settings.cp == 1:
        return None
    chunks = students.get(functions, "zigzag")(2 * settings.cp, settings.cp, groups.cp.Get_rank())
    return positions(chunks, settings.length // (2 * settings.cp))


def _context_parallel_attention(ring_attention: Callable, comm: object, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _contiguous(ring_attention(_contiguous(q), _contiguous(k), _contiguous(v), comm))


def _contiguous(x: Tensor) -> Tensor:
    """Return x with its data, and in backward its gradient, C-contiguous, so that both can be sent."""
    return Tensor.from_operation(np.ascontiguousarray(x.data), (x,), lambda grad: (np.ascontiguousarray(grad),))


def loss_for(settings: Settings, functions: object, groups: Groups) -> Callable:
    """Loss function of the last stage, called with logits and labels."""
    if settings.tp == 1:
        return loss_of
    given = students.get(functions, "vocab_parallel_cross_entropy")
    return partial(_vocab_parallel_loss, given, groups.tp)


def _vocab_parallel_loss(given: Callable, comm: object, logits: Tensor, labels: np.ndarray) -> Tensor:
    return given(logits, labels, comm)
