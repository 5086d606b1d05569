"""Functions that the checks of parts 03 to 07 run on the ranks. A result comes with the arguments, which must not have changed.

`me` is the rank's place in `ShuffledRanks`; without it, the notebook's own groups are used.
"""

from __future__ import annotations

from course_lib.engine.namespace import student


def _mp_group(size, me):
    """This rank's group: `size` consecutive places."""
    if me is None:
        return student("mp_group")(size)
    from course_lib.collectives import Communicator

    return Communicator().Split(color=me // size, key=me)


def collect(function, array, size, me=None):
    """Call an exercise's function with this rank's model parallel group of `size` ranks, or of those that are left."""
    group = _mp_group(size, me)
    return student(function)(array, group, group.Get_size()), array


def collect_for_index(function, array, index, size, me=None):
    """Call an exercise's function that is given an index in a model parallel group, and not the group."""
    return student(function)(array, index, size), array


def forward(style, x, w, size, me=None):
    """Compute a layer's output from this rank's part of the input and of the weight; `style` is "naive" or "megatron"."""
    group = _mp_group(size, me)
    collected = student(f"{style}_collect_forward_input")(x, group, size)
    return student(f"{style}_collect_forward_output")(collected @ w, group, size)


def backward(style, grad, w, size, me=None):
    """Compute the gradient of a layer's input from that of its output and this rank's part of the weight."""
    group = _mp_group(size, me)
    own = student(f"{style}_collect_backward_output")(grad, group.Get_rank(), size)
    return student(f"{style}_collect_backward_x")(own @ w.T, group, size)


def average(grad_w, grad_b, mp_size=None, color=None, me=None):
    """Call `collect_weight_grad` with this rank's data parallel group, or with that of a color."""
    from course_lib.collectives import Communicator

    group = student("dp_group")(mp_size) if color is None else Communicator().Split(color=color, key=me)
    return student("collect_weight_grad")(grad_w, grad_b, group), grad_w, grad_b
