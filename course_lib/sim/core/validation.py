"""Rules of a training step, and their error messages; called when something is wrong, or where speed does not matter."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable

from course_lib.sim.core.errors import SimulationError
from course_lib.sim.core.values import Activation, ActivationGrad, OptState, Value, Weight, WeightGrad, iter_bits
from course_lib.utils import wording

MAX_SHARDS = 4096


def _refuse(model, layer: object, text: str) -> None:
    raise SimulationError(text, rank=model.rank, layer=layer if isinstance(layer, int) else None, time=model.time)


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def check_own(model, value: object, what: str, kinds: type | tuple[type, ...], layer: object = None) -> None:
    """Check that the value is of this kind, and in this rank's memory."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, kinds):
        if hasattr(value, "exchange"):
            _refuse(model, layer, f"{what} is a communication that was not awaited: write `await` before it.")
        wanted = " or ".join(k.name for k in kinds)
        got = _with_article(value.name) if isinstance(value, Value) else type(value).__name__
        wanted = _with_article(wanted) if wanted != "value" else "a weight, an activation, a gradient or an optimizer state"
        pop = " (pop(a, b) returns b if there is no key a; is the key (a, b)?)" if isinstance(value, int) else ""
        _refuse(model, layer, f"{what} must be {wanted}; got {got}.{pop}")
    if value.model is not model:
        _refuse(model, layer, f"{what} is in the memory of rank {value.model.rank}: it has to be sent here first.")


def check_layer(model, layer: object) -> None:
    """Check that the layer is one of the model's."""
    if not isinstance(layer, int) or not 0 <= layer < model.num_layers:
        _refuse(model, None, f"there is no layer {layer!r}: the layers are 0 to {model.num_layers - 1}.")


def check_shard(model, shard: object, num_shards: object, layer: int) -> None:
    """Check that `shard` is one of `num_shards`."""
    if not (isinstance(shard, int) and isinstance(num_shards, int) and 0 <= shard < num_shards <= MAX_SHARDS):
        got = f"got shard={shard!r}, num_shards={num_shards!r} (at most {MAX_SHARDS})"
        _refuse(model, layer, f"shard must be a whole number from 0 to num_shards - 1; {got}.")


def sample_mask(model, samples: Iterable[int]) -> int:
    """Encode the samples as the bits of an integer."""
    mask, n = 0, 0
    try:
        for sample in samples:
            mask |= 1 << sample
            n += 1
    except (TypeError, ValueError):
        _refuse(model, 0, f"get_input_activation: samples must be whole numbers, in a list for instance; got {samples!r}.")
    if not mask or mask > model.all_samples:
        worst = mask.bit_length() - 1
        got = f"got sample {worst}" if mask else "got none"
        _refuse(model, 0, f"get_input_activation: give at least one sample, from 0 to {model.global_batch_size - 1}; {got}.")
    if mask.bit_count() != n:
        _refuse(model, 0, "get_input_activation: a sample occurs twice in the list.")
    return mask


def refuse_endless(model, layer: int, activation: Activation) -> None:
    """Raise an error for a rank that goes forward without end."""
    _refuse(
        model, layer, f"{len(model.rows):,} operations, and forward with {_samples(activation.mask)} once more. Is this an infinite loop?"
    )


def _check_weight(model, what: str, layer: object, weight: object) -> None:
    check_own(model, weight, f"{what}: the weight", Weight, layer)
    if weight.layer != layer:
        _refuse(model, layer, f"{what} got the weight of layer {weight.layer}.")
    if not weight.whole:
        held = f"{wording.spans(iter_bits(weight.shards))} of {weight.num_shards}"
        _refuse(model, layer, f"{what} needs the whole weight; got shard {held}. An all_gather collects the shards.")
    if weight.updated:
        _refuse(model, layer, f"{what} got the updated weight, which belongs to the next step.")


def refuse_forward(model, layer: object, activation: object, weight: object) -> None:
    """Explain why forward is impossible."""
    check_layer(model, layer)
    _check_weight(model, "forward", layer, weight)
    check_own(model, activation, "forward: the activation", Activation, layer)
    _refuse(model, layer, f"forward got the activation of layer {activation.layer}; it needs the input of layer {layer}.")


def refuse_loss(model, activation: object) -> None:
    """Explain why the loss cannot be computed."""
    check_own(model, activation, "loss: the activation", Activation)
    last = f"the output of the last layer, the activation of layer {model.num_layers}"
    _refuse(model, None, f"loss needs {last}; got that of layer {activation.layer}.")


def refuse_backward(model, layer: object, activation: object, grad: object, weight: object) -> None:
    """Explain why backward is impossible."""
    check_layer(model, layer)
    _check_weight(model, "backward", layer, weight)
    check_own(model, activation, "backward: the activation", Activation, layer)
    check_own(model, grad, "backward: the gradient of the activation", ActivationGrad, layer)
    if activation.layer != layer:
        _refuse(model, layer, f"backward got the activation of layer {activation.layer}; it needs the input of layer {layer}.")
    if grad.layer != layer + 1:
        _refuse(model, layer, f"backward got the gradient of layer {grad.layer}; it needs that of the layer's output, layer {layer + 1}.")
    one, other = (wording.spans(iter_bits(v.mask)) for v in (activation, grad))
    why = "Has a later micro-batch's value replaced it in the storage?"
    _refuse(model, layer, f"backward got the activation of samples {one} and the gradient of samples {other}: they do not match. {why}")


def refuse_update(model, layer: object, grad: object, weight: object, state: object) -> None:
    """Explain why the optimizer's step is impossible: it needs all samples, and the same shards of all three values."""
    check_layer(model, layer)
    for value, kind in ((grad, WeightGrad), (weight, Weight), (state, OptState)):
        check_own(model, value, f"update: the {kind.name}", kind, layer)
        if value.layer != layer:
            _refuse(model, layer, f"update got the {kind.name} of layer {value.layer}.")
    if grad.mask != model.all_samples:
        missing = model.all_samples & ~grad.mask
        why = "Add those of all micro-batches, and reduce over all ranks that have some."
        if (
            len({row[1] for row in model.rows if row[0] == "load"}) < model.num_layers
        ):  # a pipeline: what arrives here was loaded on another rank
            inputs = [row[-1] for other in model.dist.models.values() for row in other.rows if row[0] == "input"]
            never = functools.reduce(lambda left, mask: left & ~mask, inputs, missing)
            why = f"No rank has loaded the input of {_samples(never)} (get_input_activation)." if never else why
        told = f"{missing.bit_count()} of {model.global_batch_size} are missing ({_short_spans(missing)})"
        _refuse(model, layer, f"update before all samples are in the gradient: {told}. {why}")
    if weight.updated or state.updated:
        _refuse(model, layer, "update a second time in one step: the weight or the optimizer state already belongs to the next step.")
    said = ", ".join(
        f"{v.name}: {'whole' if v.whole else f'{wording.spans(iter_bits(v.shards))} of {v.num_shards}'}" for v in (grad, weight, state)
    )
    _refuse(model, layer, f"update with mismatched shards ({said}): all three must be the same shards.")


def _samples(mask: int) -> str:
    return f"sample{'s' * (mask.bit_count() > 1)} {_short_spans(mask)}"


def _short_spans(mask: int) -> str:
    text = wording.spans(iter_bits(mask))
    return text if len(text) <= 60 else text[:57].rsplit(",", 1)[0] + ", ..."


def check_final(model, layer: object, weight: object) -> None:
    """Check that the final weight is an updated one of the layer."""
    check_layer(model, layer)
    check_own(model, weight, "set_final_weight: the weight", Weight, layer)
    if weight.layer != layer:
        _refuse(model, layer, f"set_final_weight got the weight of layer {weight.layer}.")
    if not weight.updated:
        _refuse(model, layer, "set_final_weight got the weight from before the update.")


def check_whole(model, value: object, num_shards: object) -> None:
    """Check that the value is whole, as only a whole value can be split into shards."""
    if not value.whole or value.num_shards != 1:
        _refuse(model, value.layer, f"only a whole {value.name} can be split into {num_shards!r} shards; got {value!r}.")


def refuse_twice(model, layer: int, mask: int, whose: str) -> None:
    """Raise an error for two gradients that have samples in common; unless `Dist` is strict, only warn, once."""
    cause = "every rank takes all samples instead of its own (get_next_microbatch), or a sum is added again"
    text = f"{whose} contain {_samples(mask)}: in the sum they would count twice. A usual cause: {cause}."
    if model.dist.strict:
        _refuse(model, layer, text)
    if not model.dist.warned:
        model.dist.warned = True
        said = SimulationError(text, rank=model.rank, layer=layer, time=model.time)
        warnings.warn(f"{said} The step goes on, and the times are right; with sim.run, this is an error.", stacklevel=4)


def check_combine(model, one, other: object) -> None:
    """Check that both values are shards of the same thing."""
    check_own(model, other, "combine: the other", type(one), one.layer)
    same = all(getattr(one, name, None) == getattr(other, name, None) for name in ("layer", "num_shards", "updated", "mask"))
    if not same:
        _refuse(model, one.layer, f"{one!r} and {other!r} cannot be combined: they are not shards of the same {one.name}.")


def check_collective(model, kind: str, value: object, layer: object) -> None:
    """Check that the collective accepts the value, and that it belongs to the layer of the call."""
    kinds = (Weight, OptState, WeightGrad) if kind == "all_gather" else WeightGrad
    check_own(model, value, f"{kind}: the value", kinds, layer)
    if value.layer != layer:
        _refuse(model, layer, f"{kind} got {_with_article(value.name)} of layer {value.layer}.")
    if kind == "reduce_scatter" and value.num_shards != 1:
        _refuse(model, layer, f"reduce_scatter needs a whole gradient, which it splits into shards; got {value!r}.")


def out_of_memory_text(model, stores: tuple) -> str:
    """Describe the contents of a rank's memory, the largest first."""
    lines = sorted(((sum(v.nbytes for v in s.values() if isinstance(v, Value)), s.name, len(s)) for s in stores), reverse=True)
    holds = ", ".join(f"{name} {wording.memory(nbytes)} ({n})" for nbytes, name, n in lines if n)
    device = model.dist.hardware
    return f"out of memory: {wording.memory(model.held)}, but {device.name} has {wording.memory(device.memory)}. The rank holds {holds}."
