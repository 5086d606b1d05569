"""A transformer block whose heads and MLP columns are split over a group of ranks (Shoeybi et al., 2019, "Megatron-LM", section 3).

The student writes the communication: one function where the split work begins, and one where the ranks' results are combined.

    x ── norm ── enter ── attention of this rank's heads ── leave ── + ── norm ── enter ── this rank's columns of the MLP ── leave ── +
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib.autograd import LayerNorm, Module, Parameter, Tensor, no_grad
from course_lib.autograd.functional import attention, gelu
from course_lib.autograd.operations import linear, matmul_arrays
from course_lib.placement import Kind, replicated, sharded


def no_communication(x: Tensor, comm: object) -> Tensor:
    """Return x unchanged: the communication of a single rank."""
    return x


class ParallelLinear(Module):
    """Matrix split by columns or by rows; the input and the output are this rank's parts.

    Parameters
    ----------
    whole : numpy.ndarray
        ``(inputs, outputs)``, the same on all ranks.
    dim : int
        0 for rows (RowParallelLinear), 1 for columns (ColumnParallelLinear).
    size, index : int
        Number of ranks in the group, and this rank's place.

    Attributes
    ----------
    weight : Parameter
        This rank's part, ``(inputs, outputs / size)`` or ``(inputs / size, outputs)``.
    kind : Kind
        Placement of the whole matrix: sharded along `dim`.
    """

    def __init__(self, whole: np.ndarray, dim: int, size: int, index: int):
        self.weight = Parameter(np.ascontiguousarray(np.split(whole, size, axis=dim)[index]))
        self.kind = sharded(dim)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)


def linear_of_freed(x: Tensor, weight: Parameter, again: Callable[[], np.ndarray]) -> Tensor:
    """``x @ weight``, after which x's array is freed.

    Parameters
    ----------
    x : Tensor
        The result of an operation that does not need its own result in backward; nothing else may use it.
    weight : Parameter
    again : callable
        Called in backward; returns x's array.
    """
    rows, width = x.data, x.shape[-1]
    out = matmul_arrays(rows.reshape(-1, width), weight.data).reshape(*x.shape[:-1], -1)
    if x.requires_grad:
        x.data = np.broadcast_to(np.zeros((), x.dtype), x.shape)  # a shape without memory of its own

    def backward(grad):
        flat = grad.reshape(-1, grad.shape[-1])
        grad_weight = matmul_arrays(again().reshape(-1, width).T, flat, out=weight.take_grad_buffer())
        return matmul_arrays(flat, weight.data.T).reshape(x.shape), grad_weight

    return Tensor.from_operation(out, (x, weight), backward)


class Block(Module):
    """Attention and an MLP, each with a LayerNorm and a residual connection (Radford et al., 2019); biases only in LayerNorm.

    Parameters
    ----------
    width, heads : int
        Heads are split over the ranks; the MLP has ``4 * width`` hidden units.
    random : numpy.random.Generator
        Draws the weights: with the same seed, all ranks draw the same weights, and each keeps its part.
    comm : Communicator, optional
        The ranks that share the block; without it, the block is whole.
    enter, leave : callable
        Called with a Tensor and `comm` before and after the split work.
    recompute_enter : bool
        Whether backward calls `enter` again, so that its result need not be kept.
    dtype : data type
    core_attention : callable
        Computes the attention of q, k and v, each ``(batch, heads, positions, width / heads)``: by default to all
        earlier positions of x. Where other ranks have the rest of a text, the student's `ring_attention`.

    Raises
    ------
    ValueError
        The number of ranks does not divide the heads, or the heads do not divide the width.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        random: np.random.Generator,
        comm: object = None,
        enter: Callable = no_communication,
        leave: Callable = no_communication,
        recompute_enter: bool = False,
        dtype=np.float32,
        core_attention: Callable = attention,
    ):
        size, index = (comm.Get_size(), comm.Get_rank()) if comm is not None else (1, 0)
        if heads % size or width % heads:
            raise ValueError(f"Block: {size} ranks must divide {heads} heads, and the heads the width {width}.")

        def drawn(inputs: int, outputs: int) -> np.ndarray:
            return (random.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(dtype)

        self.comm, self.enter, self.leave, self.recompute_enter, self.heads = comm, enter, leave, recompute_enter, heads // size
        self.core_attention = core_attention
        self.norm1, self.norm2 = LayerNorm(width, dtype=dtype), LayerNorm(width, dtype=dtype)
        # The columns of q, k and v are ordered by head, so a rank's columns are those of its heads.
        self.qkv = ParallelLinear(drawn(width, 3 * width), 1, size, index)
        self.out = ParallelLinear(drawn(width, width), 0, size, index)
        self.up = ParallelLinear(drawn(width, 4 * width), 1, size, index)
        self.down = ParallelLinear(drawn(4 * width, width), 0, size, index)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.leave(self.attend(self.column_parallel(self.qkv, self.norm1(x))), self.comm)
        return x + self.leave(self.down(gelu(self.column_parallel(self.up, self.norm2(x)))), self.comm)

    def column_parallel(self, layer: Module, x: Tensor) -> Tensor:
        """Enter the split work: this rank's columns of a layer, for all positions."""
        entered = self.enter(x, self.comm)
        if not self.recompute_enter or entered is x:
            return layer(entered)

        def enter_again() -> np.ndarray:
            with no_grad():
                return self.enter(Tensor(x.data), self.comm).data

        return linear_of_freed(entered, layer.weight, enter_again)

    def attend(self, qkv: Tensor) -> Tensor:
        """This rank's summand of attention, from its heads: ``(batch, positions, 3 * width / n)`` to ``(batch, positions, width)``."""
        batch, positions, _ = qkv.shape
        qkv = qkv.reshape(batch, positions, self.heads, 3, -1).transpose(3, 0, 2, 1, 4)
        seen = self.core_attention(qkv[0], qkv[1], qkv[2])
        return self.out(seen.transpose(0, 2, 1, 3).reshape(batch, positions, -1))


def kinds(module: Module) -> list[tuple[str, Parameter, Kind]]:
    """List a module's parameters with their names and placements over the group: sharded along a dimension, or replicated.

    A parameter used in two places, such as an embedding tied to the output matrix, is listed once.

    Examples
    --------
    >>> for name, parameter, kind in kinds(Block(8, 2, np.random.default_rng(0)))[:3]:
    ...     print(name, parameter.shape, kind)
    norm1.weight (8,) replicated
    norm1.bias (8,) replicated
    norm2.weight (8,) replicated
    """
    here = getattr(module, "kind", replicated)
    inside = [(f"{name}.{inner}", p, kind) for name, child in module.children() for inner, p, kind in kinds(child)]
    known = {id(p) for _, p, _ in inside}
    own = [(name, p, here) for name, p in module.named_parameters() if id(p) not in known]
    return list({id(p): (name, p, kind) for name, p, kind in reversed([*own, *inside])}.values())[::-1]
