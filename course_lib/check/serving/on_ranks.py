"""Functions that the checks of part 34 run on the ranks, with the student's functions."""

from __future__ import annotations

import numpy as np

from course_lib.engine.namespace import get_ipython, group_of, student
from course_lib.gpt.model import Sizes
from course_lib.gpt.serving.model import ServingModel, Text


class GivenSlots:
    """A cache whose texts have the slots that they are given: nothing is allocated.

    Parameters
    ----------
    data : numpy.ndarray
        ``(layers, 2, slots, heads, size)``.
    block_size : int
    slots : dict of int to numpy.ndarray
        By text.
    """

    def __init__(self, data, block_size, slots):
        self.data, self.block_size, self.blocks, self._slots = data, block_size, data.shape[2] // block_size, dict(slots)

    def slots(self, number):
        """A text's slots, in order."""
        return np.array(self._slots.get(number, ()), dtype=int)


def use_cache(blocks, block_size, shape, dtype, ops):
    """Make a PagedCache, and call its methods: what each returned, and then the text's slots.

    Returns
    -------
    shape, dtype of the cache's data
    results : list
        For each of `ops`, which are (method, text, arguments).
    slots : numpy.ndarray
        The slots after each, one after another.
    lengths : list of int
    kinds : list of str
        Of what `slots` returned: its dtype and its number of dimensions, or its type if it is no array.
    """
    cache = student("PagedCache")(blocks, block_size, tuple(shape), np.dtype(dtype))
    results, slots, kinds = [], [], []
    for method, *arguments in ops:
        results.append(getattr(cache, method)(*arguments))
        now = cache.slots(arguments[0])
        kinds.append(f"{now.dtype.kind}{now.ndim}" if isinstance(now, np.ndarray) else type(now).__name__)
        slots.append(np.array(now, dtype=int).ravel())
    return cache.data.shape, str(cache.data.dtype), results, np.concatenate(slots), [len(s) for s in slots], kinds


def fill_cache(blocks, block_size, shape, dtype, seed):
    """Make a PagedCache, and fill it with drawn numbers, layer by layer."""
    cache = student("PagedCache")(blocks, block_size, tuple(shape), np.dtype(dtype))
    random = np.random.default_rng(seed)
    cache.allocate(1, blocks * block_size)
    slots = np.array(cache.slots(1))
    for layer in range(shape[0]):
        for kind in range(2):
            cache.data[layer, kind, slots] = random.random((len(slots), *shape[2:]), np.float32)
    get_ipython().user_ns["trial"] = cache
    return cache.data.shape, str(cache.data.dtype), cache.data.nbytes


def read_cache(layer, kind, tokens):
    """Read some tokens of the text that has the whole cache."""
    cache = student("trial")
    return np.array(cache.data[layer, kind, np.array(cache.slots(1))[tokens]])


def forget_trial():
    """Drop what a check has kept on the rank."""
    get_ipython().user_ns.pop("trial", None)


def call_forward(sizes, weights, place, data, block_size, steps):
    """Prefill and decode.

    Parameters
    ----------
    sizes : tuple
        As for `Sizes`.
    weights : dict
        This rank's parts.
    place : (int, int)
        Color and key of its group.
    data : numpy.ndarray
        The cache's, with what is in there already.
    block_size : int
    steps : list of (str, list of (int, list of int, numpy.ndarray))
        "prefill" or "decode", and the texts: number, tokens, slots.

    Returns
    -------
    list of numpy.ndarray
        Logits of each step, ``(texts, vocabulary / n)``; and the cache's data in the end.
    """
    comm = group_of(place)
    model = ServingModel(Sizes(*sizes), weights, comm.Get_size(), comm.Get_rank())
    found = []
    for kind, given in steps:
        texts = [Text(number, list(tokens), 1) for number, tokens, _ in given]
        cache = GivenSlots(data, block_size, {number: slots for number, _, slots in given})
        if kind == "prefill":
            found.append(student("prefill")(model, texts[0], cache, comm))
        else:
            found.append(student("decode")(model, texts, cache, comm))
    return found, data


def call_next_token(logits, place):
    """Call `next_token`; return what it returned, and the logits after the call."""
    return student("next_token")(logits, group_of(place)), logits


def begin_scheduler(blocks, block_size, most):
    """Make a Scheduler on an empty PagedCache."""
    cache = student("PagedCache")(blocks, block_size, (1, 2, 1, 1), np.dtype(np.float32))
    get_ipython().user_ns["trial"] = cache, student("Scheduler")(cache, most), {}


def step_scheduler(new, tokens, ended):
    """Call `next_batch` once.

    Parameters
    ----------
    new : list of (int, int, int)
        Texts that arrive: number, tokens of the prompt, limit.
    tokens : list of int
        Texts that had a token in the last step.
    ended : list of int
        Texts that end, before their limit.

    Returns
    -------
    refused : list of int
        New texts for which `add` raised a ValueError.
    prefill, decode : list of int
    slots : list of numpy.ndarray
        Of each text in prefill and decode.
    """
    cache, scheduler, texts = student("trial")
    for number in tokens:
        texts[number].tokens.append(0)
    refused = []
    for number, prompt, limit in new:
        texts[number] = Text(number, [0] * prompt, limit)
        try:
            scheduler.add(texts[number])
        except ValueError:
            refused.append(number)
    for number in ended:
        texts[number].ended = True
    found = scheduler.next_batch()
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(f"next_batch must return two lists, the texts to prefill and those to decode; got {type(found).__name__}.")
    prefill, decode = ([text.number for text in part] for part in found)
    return refused, prefill, decode, [np.array(cache.slots(number), dtype=int).ravel() for number in (*prefill, *decode)]


def call_hand_over(data, block_size, slots, number, source, target, place):
    """Hand a text over; return the cache's data after the call."""
    cache = GivenSlots(data, block_size, slots)
    student("hand_over")(cache, number, source, target, group_of(place))
    return data
