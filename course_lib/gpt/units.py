"""The pieces of a model that are sharded one by one: its blocks, each with the parameters that are its own."""

from __future__ import annotations

from course_lib.autograd import Module, Parameter


def units(module: Module) -> tuple[list[tuple[Module, list[Parameter]]], list[Parameter]]:
    """The blocks of a module, and the parameters that belong to no block alone.

    Parameters
    ----------
    module : Module
        The modules that stand directly in it are its blocks.

    Returns
    -------
    blocks : list of (Module, list of Parameter)
        In the order of ``module.children()``, with the parameters that no other block uses; without those that have none.
    rest : list of Parameter
        Those that are the module's own, and those that several blocks share, such as an embedding that is also the output's matrix.

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
    inside = [id(p) for block in blocks for p in block.parameters()]
    own = [(block, [p for p in block.parameters() if inside.count(id(p)) == 1]) for block in blocks]
    rest = [p for p in module.parameters() if inside.count(id(p)) != 1]
    return [(block, parameters) for block, parameters in own if parameters], rest
