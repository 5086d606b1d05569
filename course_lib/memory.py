"""Bytes that a rank holds, by kind, and the true peak of its allocations beside them.

Inside ``with watch() as held:`` the layers say what their arrays are for (`track`). An array
counts until it is gone: the account follows the array's own life, so nobody has to say when
memory is given back.
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
active_account: MemoryAccount | None = None  # the account that is open now
_heap_filler: list[int] = []  # addresses, see `release_freed_at_once`


class MemoryAccount:
    """The account of one rank.

    Attributes
    ----------
    now : dict of str to int
        Bytes held at this moment, by kind.
    peak : dict of str to int
        The same at the moment when the sum was largest.
    most : dict of str to int
        For each kind, the most that was held of it at once.
    true_peak : int
        The most bytes that Python and NumPy had allocated at once since the account began, as
        tracemalloc saw it; known when the ``with`` block has ended.
    true_now : int
        What of this was still allocated when the block ended.
    """

    def __init__(self):
        self.now = dict.fromkeys(MEMORY_KINDS, 0)
        self.peak, self.most = dict(self.now), dict(self.now)
        self.true_peak = self.true_now = 0
        self._arrays: dict[int, tuple[weakref.ref, str, int]] = {}

    def add(self, kind: str, array: np.ndarray) -> None:
        """Count an array until it is gone; its memory counts once, by what was said of it last."""
        if kind not in self.now:
            raise ValueError(f"memory: {kind!r} is no kind of memory; there are {', '.join(MEMORY_KINDS)}.")
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
        """Count the arrays of a collective as communication buffers, unless they are known as something else."""
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
    """Keep account of the arrays that are tracked inside the block.

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
    # NumPy's scratch space, 32 KB for an operation that broadcasts, is no tensor: keep it small meanwhile.
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
    """The account of a model that is made, takes two steps (so that its optimizer has its state) and goes; collective, as they are.

    Parameters
    ----------
    new_model : callable
        Makes the model.
    arguments : object
        Of its `step`.
    """
    with watch() as account:
        model = new_model()
        for _ in range(2):
            model.step(*arguments)
        del model
    return account


def reuse_freed(nbytes: int = 16 << 20) -> None:
    """Have the process keep what is freed, up to so many bytes an array, for the next one.

    glibc gives each array above 128 KB back to the system when it goes, until one has gone that was larger: the next
    one's pages then have to be mapped anew, which in a training step takes longer than its arithmetic.
    """
    np.empty(nbytes, np.uint8)  # comes and goes, untouched


def keep_freed() -> None:
    """Have the process keep all that is freed for its next arrays: a virtual machine may take a millisecond to find two new megabytes."""
    with suppress(OSError, AttributeError):  # glibc's
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 25)
        libc.mallopt(-1, 1 << 30)


def release_freed_at_once(at_once: bool) -> None:
    """Whether each array is given back to the system as soon as it goes, so that the system sees what is held and no more."""
    with suppress(OSError, AttributeError):  # glibc's
        libc = ctypes.CDLL(None)
        libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
        libc.mallopt(-3, 1 << (17 if at_once else 25))
        while _heap_filler:
            libc.free(ctypes.c_void_p(_heap_filler.pop()))
        libc.malloc_trim(0)
        end = libc.sbrk(0)
        # What large arrays have left free in the heap would be used again, and not given back: fill it, untouched.
        while at_once and libc.sbrk(0) == end and len(_heap_filler) < 1 << 14:
            _heap_filler.append(libc.malloc((1 << 17) - 64))


def track(kind: str, array: np.ndarray) -> np.ndarray:
    """Say what an array is for; returns the array. Costs next to nothing outside of `watch`.

    Parameters
    ----------
    kind : str
        One of `MEMORY_KINDS`.
    array : numpy.ndarray
        Any array; of a view, the array that owns the memory counts.
    """
    if active_account is not None:
        active_account.add(kind, array)
    return array


def live_array_bytes() -> int:
    """Bytes of all NumPy arrays that this process can still reach, wherever they are kept.

    In a variable, an attribute, a closure, a list, a module: every object that Python's garbage
    collector knows is followed, and the cells' own names: a rank's collector leaves out what it had
    when it was forked. Of views, the array that owns the memory counts, once.
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
            else:  # tuples and dicts that hold only arrays are not among the collector's objects
                follow = isinstance(other, (tuple, dict, list)) and not gc.is_tracked(other)
            if follow and id(other) not in seen:
                seen.add(id(other))
                todo.append(other)
    return sum(owners.values())
