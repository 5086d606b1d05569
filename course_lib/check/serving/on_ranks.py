"""Functions that the checks of part 34 run on the ranks, with the student's functions."""

from __future__ import annotations

import numpy as np

from course_lib.check.cases.virtual_group import run_virtually
from course_lib.check.serving.models import CountedModel
from course_lib.engine.namespace import get_ipython, group_of, student
from course_lib.gpt.model import Sizes
from course_lib.gpt.serving.model import Text

LOOKS = 3  # in vain: from the second one on, a virtual rank waits until no other can go on


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
        self.data, self.block_size, self._slots = data, block_size, dict(slots)
        self.blocks = data.shape[2] // block_size

    def slots(self, number):
        """A text's slots, in order."""
        return np.array(self._slots.get(number, ()), dtype=int)


def use_caches(caches, calls):
    """Make several PagedCaches, and call their methods, now of one, now of another.

    Parameters
    ----------
    caches : list of dict
        Arguments of PagedCache.
    calls : list of (int, str, int, ...)
        Which cache, the method, the text, and further arguments.

    Returns
    -------
    made : list of (tuple of int, str)
        Shape and dtype of each cache's data.
    results : list
        What each call returned.
    slots : list of (object, object)
        After each call: the slots of its text, and of the text of the call before.
    """
    made = []
    for cache in caches:
        shape, dtype = tuple(cache["shape"]), np.dtype(cache["dtype"])
        made.append(student("PagedCache")(cache["blocks"], cache["block_size"], shape, dtype))
    results, slots, before = [], [], calls[0]
    for call in calls:
        which, method, *arguments = call
        results.append(getattr(made[which], method)(*arguments))
        both = [made[cache].slots(number) for cache, _, number, *_ in (call, before)]
        slots.append([np.array(own) if isinstance(own, np.ndarray) else own for own in both])
        before = call
    return [(cache.data.shape, str(cache.data.dtype)) for cache in made], results, slots


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
    return cache.data.shape, str(cache.data.dtype)


def read_cache(layer, kind, tokens):
    """Read some tokens of the text that has the whole cache."""
    cache = student("trial")
    return np.array(cache.data[layer, kind, np.array(cache.slots(1))[tokens]])


def forget_trial():
    """Drop what a check has kept on the rank."""
    get_ipython().user_ns.pop("trial", None)


def call_forward(sessions, steps):
    """Prefill and decode.

    Parameters
    ----------
    sessions : list of dict
        "sizes": as for `Sizes`; "weights": this rank's parts; "place": color and key of its group;
        "data": the cache's, with what is in there already; "block_size".
    steps : list of (int, str, list of (int, list of int, numpy.ndarray))
        In which session, "prefill" or "decode", and the texts: number, tokens, slots.

    Returns
    -------
    logits : list of numpy.ndarray
        Of each step, ``(texts, vocabulary / n)``.
    texts : list of list of (int, list of int)
        Each step's texts after the call: number, and tokens.
    data : list of numpy.ndarray
        Of each session's cache, in the end.
    """
    comms = [group_of(session["place"]) for session in sessions]
    models = [
        CountedModel(Sizes(*session["sizes"]), session["weights"], comm.Get_size(), comm.Get_rank())
        for session, comm in zip(sessions, comms, strict=True)
    ]
    logits, left = [], []
    for which, kind, batch in steps:
        session = sessions[which]
        texts = [Text(number, list(tokens), 1) for number, tokens, _ in batch]
        slots = {number: own for number, _, own in batch}
        cache = GivenSlots(session["data"], session["block_size"], slots)
        if kind == "prefill":
            logits.append(student("prefill")(models[which], texts[0], cache, comms[which]))
        else:
            logits.append(student("decode")(models[which], texts, cache, comms[which]))
        left.append([(text.number, text.tokens) for text in texts])
    return logits, left, [session["data"] for session in sessions]


def begin_schedulers(caches, most):
    """Make a Scheduler for each of these (blocks, block_size), on an empty PagedCache."""
    trial = []
    for (blocks, block_size), places in zip(caches, most, strict=True):
        cache = student("PagedCache")(blocks, block_size, (1, 2, 1, 1), np.dtype(np.float32))
        trial.append((cache, student("Scheduler")(cache, places), {}))
    get_ipython().user_ns["trial"] = trial


def step_schedulers(events):
    """Call `next_batch` of each scheduler once; see `_step`."""
    return [_step(*kept, **event) for kept, event in zip(student("trial"), events, strict=True)]


def _step(cache, scheduler, texts, new, tokens, ended):
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
    after : list of (int, int, int, int, bool)
        Number, tokens, prompt, limit and `ended` of the texts in the batch, after the call.
    """
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
    batch = scheduler.next_batch()
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        expected = "next_batch must return two lists, the texts to prefill and those to decode"
        raise TypeError(f"{expected}; got {type(batch).__name__}.")
    prefill, decode = ([text.number for text in part] for part in batch)
    numbers = [*prefill, *decode]
    slots = [np.array(cache.slots(number), dtype=int).ravel() for number in numbers]
    mine = [texts[number] for number in numbers if number in texts]
    after = [(t.number, len(t.tokens), t.prompt, t.limit, bool(t.ended)) for t in mine]
    return refused, prefill, decode, slots, after


def call_hand_over(caches, calls, places):
    """Hand texts over, one after the other.

    Parameters
    ----------
    caches : list of (numpy.ndarray, int)
        Data and size of a block.
    calls : list of (int, int, dict, int, int, list of int)
        Which communicator, which cache, the slots of its texts, and number, source and target.
    places : list of (int, int)
        Color and key of this rank in each communicator.

    Returns
    -------
    data : list of numpy.ndarray
        Of each cache, after the last call.
    targets : list of list of int
        After each call.
    """
    comms = [group_of(place) for place in places]
    targets = []
    for group, which, slots, number, source, target in calls:
        data, block_size = caches[which]
        cache = GivenSlots(data, block_size, slots)
        student("hand_over")(cache, number, source, target, comms[group])
        targets.append(target)
    return [data for data, _ in caches], targets


def call_hand_over_late(caches, calls, late, seed):
    """Hand texts over on virtual ranks, of which one makes its calls late; see `run_virtually`.

    It begins when no other rank can go on without it: whoever sends to the same ranks has done so.

    Parameters
    ----------
    caches : list of (numpy.ndarray, int, dict of int to numpy.ndarray)
        By rank: data, size of a block, and slots by text.
    calls : list of (int, int, list of int)
        Number, source and target.
    late, seed : int

    Returns
    -------
    list of numpy.ndarray
        Each rank's data after the last call.
    """

    last = len(caches) - 1
    other = late - 1 if late else last

    def handed_over(comm, rank):
        data, block_size, slots = caches[rank]
        cache = GivenSlots(data.copy(), block_size, slots)
        # Groups with the same order would share their messages; in this one, `last` comes first.
        private = comm.Split(key=-rank)
        if rank == late:
            request = private.Irecv(np.empty(1), last - other)
            for _ in range(LOOKS):
                request.Test()
        for number, source, target in calls:
            student("hand_over")(cache, number, source, list(target), comm)
        if rank == late:
            request.Wait()
        elif rank == other:
            private.Send(np.zeros(1), last - late)
        return cache.data

    return [outcome[0] for outcome in run_virtually(len(caches), handed_over, seed)]
