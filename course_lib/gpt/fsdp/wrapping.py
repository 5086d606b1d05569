"""Wrapping a model's blocks: the parameters that belong to each block, and hooks before and after it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from course_lib.autograd import Module, Parameter, Tensor, after_backward


def units(module: Module) -> tuple[list[tuple[Module, list[Parameter]]], list[Parameter]]:
    """Split a module's parameters into those of each block and the rest.

    Parameters
    ----------
    module : Module
        Its direct children are its blocks.

    Returns
    -------
    blocks : list of (Module, list of Parameter)
        In the order of ``module.children()``, with the parameters that no other block uses; blocks without any are omitted.
    rest : list of Parameter
        The module's own parameters and those shared by several blocks, such as an embedding tied to the output matrix.

    Examples
    --------
    >>> from course_lib.autograd import Linear, Sequential, Tanh
    >>> first, last = Linear(2, 2), Linear(2, 2)
    >>> last.weight = first.weight
    >>> blocks, rest = units(Sequential(first, Tanh(), last))
    >>> [[p.shape for p in parameters] for _, parameters in blocks], [p.shape for p in rest]
    ([[(2,)], [(2,)]], [(2, 2)])
    """
    blocks = list({id(block): block for _, block in module.children()}.values())
    users = Counter(id(p) for block in blocks for p in block.parameters())
    own = [(block, [p for p in block.parameters() if users[id(p)] == 1]) for block in blocks]
    rest = [p for p in module.parameters() if users[id(p)] != 1]
    return [(block, parameters) for block, parameters in own if parameters], rest


def hook(module: Module, hooks: object) -> None:
    """Call hooks when a module's blocks run, in forward and in backward.

    Parameters
    ----------
    module : Module
    hooks : object
        Has four methods, whose return values are ignored:

        - ``begin()``: the module's forward begins;
        - ``before(i, back)``: block number i is about to run, in forward or (`back` is True) in backward;
        - ``after(i, back)``: the block has run; in backward, the gradients of all its own parameters are complete;
        - ``end(back)``: everything is done, at the end of backward, or at the end of a forward without gradients.
    """
    for i, (block, _) in enumerate(units(module)[0]):
        block.forward = partial(_run_block, i, block.forward, hooks)
    module.forward = partial(_run_module, module.forward, hooks)


def _run_block(i: int, forward: Callable[[Tensor], Tensor], hooks: object, x: Tensor) -> Tensor:
    hooks.before(i, False)
    # Backward takes the newest operation first: it comes to this one, older than the block's own, once all of those are done.
    last = call_in_backward((Tensor(np.zeros(()), requires_grad=True),), partial(hooks.after, i, True))
    out = call_in_backward((forward(x), last), partial(hooks.before, i, True))
    hooks.after(i, False)
    return out


def call_in_backward(inputs: tuple[Tensor, ...], call: Callable[[], object]) -> Tensor:
    """Return the first tensor unchanged; backward calls a function when it comes here."""

    def backward(grad):
        call()
        return (grad, *(np.zeros(other.shape) for other in inputs[1:]))

    return Tensor.from_operation(inputs[0].data, inputs, backward)


def _run_module(forward: Callable[[Tensor], Tensor], hooks: object, x: Tensor) -> Tensor:
    hooks.begin()
    out = forward(x)
    if out.requires_grad:
        out.register_hook(lambda _: after_backward(partial(hooks.end, True)))
    else:
        hooks.end(False)
    return out


class PrintHooks:
    """Hooks that print their calls."""

    def begin(self) -> None:
        print("begin")

    def before(self, i: int, back: bool) -> None:
        print(f"before(i={i}, back={back})")

    def after(self, i: int, back: bool) -> None:
        print(f"after(i={i}, back={back})")

    def end(self, back: bool) -> None:
        print(f"end(back={back})")


class Hooked(Module):
    """A module that calls its own hooks, and whose trainable parameters are its `shards`; subclasses implement the hooks of `hook`.

    Parameters
    ----------
    module : Module

    Attributes
    ----------
    shards : sequence
        Each has a Parameter, `shard`.
    """

    shards: Sequence = ()

    def __init__(self, module: Module):
        self.module = module
        hook(module, self)

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield the shards with their names, for an optimizer."""
        yield from ((f"{prefix}shards.{i}", one.shard) for i, one in enumerate(self.shards))

    def forward(self, x: Tensor) -> Tensor:
        """Output of the wrapped module."""
        return self.module(x)
