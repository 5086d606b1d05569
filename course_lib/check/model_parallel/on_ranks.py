"""Functions that the checks of parts 03 to 07 run on the ranks. A result comes with the arguments, which must not have changed."""

from __future__ import annotations

from course_lib.engine.namespace import student


def collect(function, array, size):
    """Call an exercise's function with this rank's model parallel group of `size` ranks."""
    return student(function)(array, student("mp_group")(size), size), array


def collect_for_index(function, array, index, size):
    """Call an exercise's function that is given an index in a model parallel group, and not the group."""
    return student(function)(array, index, size), array


def forward(style, x, w, size):
    """Compute a layer's output from this rank's part of the input and of the weight; `style` is "naive" or "megatron"."""
    group = student("mp_group")(size)
    collected = student(f"{style}_collect_forward_input")(x, group, size)
    return student(f"{style}_collect_forward_output")(collected @ w, group, size)


def backward(style, grad, w, size):
    """Compute the gradient of a layer's input from that of its output and this rank's part of the weight."""
    group = student("mp_group")(size)
    own = student(f"{style}_collect_backward_output")(grad, group.Get_rank(), size)
    return student(f"{style}_collect_backward_x")(own @ w.T, group, size)


def average(grad_w, grad_b, mp_size):
    """Call `collect_weight_grad` with this rank's data parallel group."""
    return student("collect_weight_grad")(grad_w, grad_b, student("dp_group")(mp_size)), grad_w, grad_b
