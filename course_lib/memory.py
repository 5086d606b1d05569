"""Memory account of a rank: bytes held by kind, and the true peak of its allocations.

Inside ``with watch() as held:`` the layers declare what their arrays are for (`track`). An array counts until it is freed: the account
follows the array's lifetime, so deallocation need not be reported.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

MEMORY_KINDS = ("parameters", "gradients", "optimizer state", "activations", "communication buffers")
active_account: MemoryAccount | None = None  # the account that is currently open
_heap_filler: list[int] = []  # addresses, see `release_freed_at_once`


class MemoryAccount:
    """Memory account of one rank.

    Attributes
    ----------
    now : dict of str to int
        Bytes held now, by kind.
    peak : dict of str to int
        The same at the moment when the total was largest.
    most : dict of str to int
        For each kind, the largest number of bytes held at once.
    true_peak : int
        Peak of the bytes allocated by Python and NumPy since the account was opened, as measured by tracemalloc; available once
        the ``with`` block has ended.
    true_now : int
        The part of these still allocated when the block ended.
    """

    def __init__(self):
        self.now = dict.fromkeys(MEMORY_KINDS, 0)
        self.peak, self.most = dict(self.now), dict(self.now)
        self.true_peak = self.true_now = 0
        self._arrays: dict[int, tuple[weakref.ref, str, int]] = {}

    def add(self, kind: str, array: np.ndarray) -> None:
        """Count an array until it is freed; its memory counts once, under the kind it was given last."""
        if kind not in self.now:
            raise ValueError(f"memory: {kind!r} is not a kind of memory; the kinds are {', '.join(MEMORY_KINDS)}.")
        while isinstance(array.base, np.ndarray):
            array = array.base
        key = id(array)
        if key in self._arrays:
            _, before, nbytes = self._arrays[key]
            if before == kind:
                return
            self.now[before] -= nbytes
        else:
            nbytes = array.nbytes
        self._arrays[key] = (weakref.ref(array, lambda _, key=key: self._remove(key)), kind, nbytes)
        self.now[kind] += nbytes
        self.most[kind] = max(self.most[kind], self.now[kind])
        if sum(self.now.values()) > sum(self.peak.values()):
            self.peak = dict(self.now)

    def exchanged(self, *buffers: object) -> None:
        """Count the arrays of a collective as communication buffers, unless they already have another kind."""
        for array in buffers:
            while isinstance(getattr(array, "base", None), np.ndarray):
                array = array.base
            if isinstance(array, np.ndarray) and id(array) not in self._arrays:
                self.add("communication buffers", array)

    def _remove(self, key: int) -> None:
        _, kind, nbytes = self._arrays.pop(key)
        self.now[kind] -= nbytes


@contextmanager
def watch() -> Iterator[MemoryAccount]:
    """Account for the arrays that are tracked inside the block.

    Examples
    --------
    >>> with watch() as held:
    ...     x = track("activations", np.zeros((60, 256), np.float32))
    ...     del x
    ...     w = track("parameters", np.zeros(10, np.float32))
    >>> held.peak["activations"], held.now["activations"], held.now["parameters"]
    (61440, 0, 40)
    """
    global active_account
    before, active_account = active_account, MemoryAccount()
    # NumPy's scratch buffer, 32 KB for a broadcasting operation, is not a tensor: keep it small meanwhile.
    scratch = np.setbufsize(512)
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    tracemalloc.reset_peak()
    base = tracemalloc.get_traced_memory()[0]
    try:
        yield active_account
    finally:
        active_account.true_now, active_account.true_peak = (nbytes - base for nbytes in tracemalloc.get_traced_memory())
        if not traced:
            tracemalloc.stop()
        np.setbufsize(scratch)
        active_account = before


def account_of_steps(new_model: Callable, *arguments: object) -> MemoryAccount:
    """Account for a model that is created, takes two steps (so that its optimizer has its state) and is deleted; as collective as these.

    Parameters
    ----------
    new_model : callable
        Creates the model.
    arguments : object
        Arguments of its `step`.
    """
    with watch() as account:
        model = new_model()
        for _ in range(2):
            model.step(*arguments)
        del model
    return account


def reuse_freed(nbytes: int = 16 << 20) -> None:
    """Keep freed memory of up to `nbytes` per array in the process for later arrays.

    glibc returns each array above 128 KB to the system when it is freed, until a larger one has been freed: the next array's
    pages then have to be mapped again, which in a training step takes longer than the arithmetic.
    """
    np.empty(nbytes, np.uint8)  # allocated and freed, never touched


def keep_freed() -> None:
    """Keep all freed memory for later arrays: on a virtual machine, mapping two new megabytes may take a millisecond."""
    with suppress(OSError, AttributeError):  # glibc only
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 25)
        libc.mallopt(-1, 1 << 30)


def release_freed_at_once(at_once: bool) -> None:
    """Choose whether freed arrays are returned to the system at once, so that it sees only what is really held.

    Arrays that lie in the heap already stay there, and their space is reused once they are freed: drop them before the call.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc only
        libc = ctypes.CDLL(None)
        libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
        libc.mallopt(-3, 1 << (17 if at_once else 25))
        while _heap_filler:
            libc.free(ctypes.c_void_p(_heap_filler.pop()))
        libc.malloc_trim(0)
        end = libc.sbrk(0)
        # Large freed arrays leave free space in the heap, which would be reused instead of returned: fill it, untouched.
        while at_once and libc.sbrk(0) == end and len(_heap_filler) < 1 << 14:
            _heap_filler.append(libc.malloc((1 << 17) - 64))


def track(kind: str, array: np.ndarray) -> np.ndarray:
    """Declare what an array is for, and return it. Costs almost nothing outside `watch`.

    Parameters
    ----------
    kind : str
        One of `MEMORY_KINDS`.
    array : numpy.ndarray
        Any array; for a view, the array that owns the memory is counted.
    """
    if active_account is not None:
        active_account.add(kind, array)
    return array


def live_array_bytes() -> int:
    """Count the bytes of all NumPy arrays that are still reachable in this process, wherever they are stored.

    Variables, attributes, closures, lists, modules: every object known to Python's garbage collector is followed, and the cells'
    own names as well, as a rank's collector ignores objects from before the fork. The memory that views share is counted once,
    with the array that owns it.
    """
    owners: dict[int, int] = {}
    seen: set[int] = set()
    todo = [*gc.get_objects(), vars(sys.modules["__main__"])]
    while todo:
        thing = todo.pop()
        found = list(thing.flat) if isinstance(thing, np.ndarray) else gc.get_referents(thing)
        for other in found:
            if isinstance(other, np.ndarray):
                while isinstance(other.base, np.ndarray):
                    other = other.base
                owners[id(other)] = other.nbytes
                follow = other.dtype.hasobject
            else:  # tuples and dicts that hold only arrays are not tracked by the collector
                follow = isinstance(other, (tuple, dict, list)) and not gc.is_tracked(other)
            if follow and id(other) not in seen:
                seen.add(id(other))
                todo.append(other)
    return sum(owners.values())
