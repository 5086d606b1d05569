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
    return _call(function, array, (group, group.Get_size()), me)


def collect_for_index(function, array, index, size, me=None):
    """Call an exercise's function that is given an index in a model parallel group, and not the group."""
    return _call(function, array, (index, size), me)


def call_alone(function, array, index, place, calls):
    """Call an exercise's function on some ranks of a group only; `index` is None if it is given the group."""
    from course_lib.collectives import Communicator

    group = Communicator().Split(color=place[0], key=place[1])
    if calls:
        student(function)(array, group if index is None else index, group.Get_size())


def _call(function, array, others, me):
    """Call an exercise's function with an array that is read-only on every second rank.

    Returns
    -------
    tuple of (object, (numpy.ndarray, bool, bool))
        The result; the array after the call, and whether it was writeable before and after it.
    """
    array = array.copy()  # one that owns its memory: nothing else refuses to change its flags
    writeable = me is None or me % 2 == 0
    array.flags.writeable = writeable
    result = student(function)(array, *others)
    return result, (array, writeable, array.flags.writeable)


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
