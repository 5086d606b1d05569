"""Report a failed check: the rank, the expected value, the usual cause.

A check runs in the notebook's kernel. It sends each rank its input, calls the student's function there (`Ranks.call`), and
compares the results in the kernel.
"""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from course_lib import placement, students, traffic
from course_lib.check import cases
from course_lib.check.cases.values import place_special, same_values
from course_lib.check.limits import Limit
from course_lib.engine.serialization import Opaque
from course_lib.utils import wording

KnownMistakes: TypeAlias = dict[str, np.ndarray] | Callable[[], dict[str, np.ndarray]] | None
MOST_SOUGHT = 100_000  # values of a large array that are looked for in what was sent
MAX_MESSAGE_CHARS = 2_000  # characters of a message; it may quote what an answer returned
SEED_ENV = "COURSE_SEED"  # set it to the seed in a message to repeat that test


class CheckFailed(AssertionError):
    """A wrong answer; the message says where."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mnot right yet\x1b[0m: {self}"]


class Check:
    """Compare the ranks' answers with what is expected.

    Parameters
    ----------
    what : str
        What is checked; `passed` prints it.
    show : bool
        Whether messages may contain expected values. A hidden test says no.

    Attributes
    ----------
    random : numpy.random.Generator
        Draws the inputs; the message of a failed hidden test gives its seed.
    """

    def __init__(self, what: str, *, show: bool = True):
        self.what, self.show = what, show
        # 64 bits, so that nobody finds the seed by trying all of them
        self.seed = int(os.environ.get(SEED_ENV) or secrets.randbits(64))
        self.random = np.random.default_rng(self.seed)
        self._sizes: dict[tuple[int, int], list[int]] = {}
        self._next_special: dict[tuple[np.dtype, bool], int] = {}
        self.case = ""

    @property
    def exercise(self) -> str:
        """The function or class that is checked: the first word of `what`."""
        return re.match(r"\w*", self.what)[0]

    def covers(self, *kinds: str) -> None:
        """Record that this check has drawn these kinds of cases; see `cases.KINDS`."""
        cases.record(self.exercise, *kinds)

    def special(self, *shape: int, dtype: type | str = np.float64, finite: bool = False) -> np.ndarray:
        """Draw an array in which up to half of the elements are special values.

        Small arrays take them in turn, so that several have all of them; see `cases.values`.
        """
        array = (self.random.standard_normal(shape) * 100).astype(dtype)
        key = array.dtype, finite
        start = self._next_special.get(key, 0)
        self._next_special[key] = place_special(array, self.random, start, finite=finite)
        self.covers("special values")
        return array

    def sizes(self, count: int, low: int, high: int) -> list[int]:
        """Draw `count` different sizes from `low` to `high` - 1; none is drawn again before all the others have been drawn.

        So an answer with a hard-coded size, or one that only works for square arrays, does not pass by chance.
        """
        left, found = self._sizes.setdefault((low, high), []), []
        while len(found) < count:
            if not set(left) - set(found):
                left += self.random.permutation(np.arange(low, high)).tolist()
            size = next(size for size in left if size not in found)
            left.remove(size)
            found.append(size)
        return found

    def fail(self, problem: str, cause: str = "", known: str = "", limit: Limit | None = None) -> None:
        """Raise CheckFailed with this problem, the case, the known mistake that it is, and the usual cause.

        A `limit` that was exceeded is quoted as the exercise states it.
        """
        students.record_check(self.what, False)
        parts = [problem + (f", for {self.case}" if self.case else "") + "."]
        if limit:
            parts.append(f"The exercise says: {limit.text}")
        if known:
            parts.append(f"It is {known}.")
        if cause:
            parts.append(f"A usual cause: {cause}.")
        from course_lib.cluster import replies  # here: ranks import this package without the notebook's side

        if replies.wrong_group:
            parts.append(replies.wrong_group)
        if not self.show:
            parts.append(f"(seed {self.seed})")
        text = " ".join(parts)
        raise CheckFailed(text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]} (truncated)")

    def value(self, got: object, want: object, *, name: str, rank: int, cause: str = "") -> None:
        """Check a number: `got` must equal `want`, and be an integer if `want` is one."""
        whole = isinstance(want, int) and not isinstance(want, bool)
        kinds = (int, np.integer) if whole else (int, float, np.number)
        if isinstance(got, (bool, np.bool_)) or not isinstance(got, kinds):
            self.fail(f"{name} on rank {rank} must be a {'whole ' if whole else ''}number; got {_short_repr(got)}", cause)
        if got != want:
            values = f" is {_short_repr(got)}, expected {_short_repr(want)}" if self.show else " has the wrong value"
            self.fail(f"{name} on rank {rank}{values}", cause)

    def array(
        self,
        got: object,
        want: np.ndarray,
        *,
        name: str,
        rank: int,
        cause: str = "",
        rtol: float = 0.0,
        scale: float | None = None,
        dtype: bool = True,
        contiguous: bool | Limit = False,
        signed_zeros: bool = False,
        instead: KnownMistakes = None,
        shape_cause: str | None = None,
    ) -> None:
        """Check an array: shape, dtype (unless `dtype` is False), layout (if it must be `contiguous`) and values.

        Parameters
        ----------
        got, want : object, numpy.ndarray
            The rank's array, and what it should be.
        name : str
            What the student calls it.
        rank : int
            The rank it came from.
        cause : str
            The usual cause of wrong values, and, unless there is a `shape_cause`, of a wrong shape.
        rtol : float
            Tolerance relative to `scale`; 0 requires equal values. NaN and infinities must be where
            they are in `want` in any case.
        scale : float, optional
            Default: the largest magnitude in `want`. If `want` is one term of a sum, or its terms may cancel to nearly zero,
            pass the magnitude of the terms.
        signed_zeros : bool
            Whether -0.0 and 0.0 differ, for values that are only moved.
        instead : dict of str to numpy.ndarray, or function that returns one, optional
            The results of known mistakes: if `got` equals one, the message names it instead of the usual cause.
        shape_cause : str, optional
            The usual cause of a wrong shape.
        """
        if not isinstance(got, np.ndarray):
            self._not_an_array(got, name, rank)
        if got.shape != want.shape:
            known, cause = _describe_known_mistake(got, want, instead), cause if shape_cause is None else shape_cause
            if want.size and not got.size:
                cause = "an empty slice: the end of a[start:end] is an index, not a length"
            self.fail(f"{name} on rank {rank} has shape {got.shape}, expected {want.shape}", "" if known else cause, known)
        if dtype and got.dtype != want.dtype:
            known = _describe_known_mistake(got, want, instead)
            hint = "np.empty, np.zeros and np.ones make float64 unless dtype= is given" if got.dtype == np.float64 else ""
            self.fail(f"{name} on rank {rank} has dtype {got.dtype}, expected {want.dtype}", "" if known else hint, known)
        if contiguous and not got.flags.c_contiguous:
            hint = "a slice of columns, a transpose or Fortran order; np.ascontiguousarray makes a copy that MPI can send"
            limit = contiguous if isinstance(contiguous, Limit) else None
            self.fail(f"{name} on rank {rank} is not C-contiguous", hint, limit=limit)
        if scale is None:
            scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=0))
        tolerance = rtol * scale
        with np.errstate(invalid="ignore", over="ignore"):
            right = same_values(got, want, signed_zeros=signed_zeros)
            if rtol:
                right |= np.abs(got - want) <= tolerance
        if not np.all(right):
            self._wrong_values(got, want, ~right, tolerance, f"{name} on rank {rank}", cause, instead)

    def _wrong_values(
        self,
        got: np.ndarray,
        want: np.ndarray,
        wrong: np.ndarray,
        tolerance: float,
        name: str,
        cause: str,
        instead: KnownMistakes,
    ) -> None:
        """Fail because of the elements that are `wrong`, with what they have in common."""
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        position = f"; at {list(where)} it is" if want.size > 1 else ":"
        values = f"{position} {got[where]}, expected {want[where]}" if self.show else ""
        known = _describe_known_mistake(got, want, instead)
        relation = "" if known else _describe_relation(got, want, tolerance)
        if relation.startswith("; each is -"):  # all values are in place: no cause about their order
            cause = "a wrong sign"
        elif relation.startswith("; each is"):
            cause = "a sum instead of a mean or vice versa, a division by the wrong number, or dividing twice"
        if "another order" in relation and want.ndim > 1:
            order = "a missing or extra transpose, or parts concatenated along the wrong axis"
            cause = f"{order}; or {cause}" if cause else order
        problem = f"{name} has the wrong value"
        if want.size > 1:
            many = f"{np.count_nonzero(wrong)} of {want.size} values"
            problem = f"{name} has the right shape, but {many} differ"
        self.fail(f"{problem}{values}{relation}", "" if known else cause, known)

    def _not_an_array(self, got: object, name: str, rank: int) -> None:
        causes = {
            tuple: "a trailing comma after the returned value",
            type(None): "a missing return, or the return value of a collective, which is None",
        }
        if isinstance(got, (int, float, np.number)):
            causes[type(got)] = "a sum, mean or maximum over all axes; choose the axis with axis="
        self.fail(f"{name} on rank {rank} must be a NumPy array; got {_short_repr(got)}", causes.get(type(got), ""))

    def distributed(
        self, got: list, kind: placement.Kind, want: np.ndarray, *, name: str, ranks: list[int], cause: str = "", rtol: float = 1e-9
    ) -> None:
        """Check that a group's ranks together hold `want` in this placement; see `placement`.

        Parameters
        ----------
        got : list
            One array for each of `ranks`.
        kind : placement.Kind
            The expected placement.
        rtol : float
            Tolerance relative to the largest value.
        """
        for r, array in zip(ranks, got, strict=True):
            if not isinstance(array, np.ndarray):
                self.fail(f"{name} on rank {r} must be a NumPy array; got {_short_repr(array)}")
        if wrong := placement.difference(kind, got, want, rtol, ranks):
            other = [found for found in placement.kinds_of(got, want, max(rtol, 1e-6)) if found != kind]
            instead = f"; it is {other[0]}" if other else ""
            self.fail(f"{name} must be {kind} over {wording.ranks(ranks)}, and is not: {wrong}{instead}", cause)

    def sent(
        self,
        moved: list[tuple],
        most: float,
        *,
        name: str,
        rank: int,
        cause: str = "",
        limit: Limit | None = None,
    ) -> None:
        """Check that a rank sent no more than `most` bytes on the wire.

        Parameters
        ----------
        moved : list of (str, list of int, int, int)
            The rank's entry of `Ranks.traffic`.
        most : float
            Upper limit in bytes, computed with the formulas of `traffic`.
        limit : Limit
            The limit as the exercise states it.
        """
        wire = sum(traffic.wire_bytes(operation, len(ranks), payload) for operation, ranks, _, payload in moved)
        if wire > most:
            calls = ", ".join(sorted({operation for operation, *_ in moved}))
            problem = f"{name} on rank {rank} sent {wire:,.0f} bytes ({calls}); {most:,.0f} are enough"
            self.fail(problem, cause, limit=limit)

    def calls(
        self,
        moved: list[tuple],
        most: int | dict[str, int],
        *,
        group: list[int],
        name: str,
        rank: int,
        limit: Limit,
        cause: str = "",
    ) -> None:
        """Check how often a rank has called its communicator, and that it has called no other ranks.

        Parameters
        ----------
        moved : list of (str, list of int, int, int)
            The rank's entry of `Ranks.traffic`. Non-blocking calls count as their blocking forms;
            a message counts once, where it is sent; `Split` does not count.
        most : int, or dict of str to int
            How many calls, of any operation or of each; one that is not in the dict has none.
        group : list of int
            The world ranks of the communicator.
        limit : Limit
            The limit as the exercise states it.
        """
        counts: Counter[str] = Counter()
        for operation, ranks, count, _ in moved:
            if not set(ranks) <= set(group):
                others = wording.ranks(sorted(set(ranks) - set(group)))
                hint = "a call on everyone, or on another group than the one in the arguments"
                self.fail(f"{name} on rank {rank} calls {operation} with {others}, outside its group", hint)
            counts[operation] += count
        if isinstance(most, dict):
            excess = [operation for operation in counts if counts[operation] > most.get(operation, 0)]
        else:
            excess = list(counts) if counts.total() > most else []
        if excess:
            made = ", ".join(f"{counts[operation]:,} of {operation}" for operation in sorted(excess))
            self.fail(f"{name} on rank {rank} makes too many calls: {made}", cause, limit=limit)
        self.covers("calls")

    def requests_completed(self, left: int, rank: int) -> None:
        """Check that a rank has completed every request it started: `left` is its entry of `Ranks.unended`."""
        if left:
            cause = "an Isend, Irecv or nonblocking collective whose request is not kept; each request needs a Wait"
            self.fail(f"rank {rank} has started {left} more exchange{'s' * (left > 1)} than it has waited for", cause)

    def numbers(
        self,
        got: object,
        want: list[float],
        *,
        name: str,
        rank: int,
        cause: str = "",
        rtol: float = 1e-9,
        instead: dict[str, np.ndarray] | None = None,
    ) -> None:
        """Check a list of numbers, with a tolerance relative to the largest; `instead` as for `array`."""
        values = list(got) if isinstance(got, (list, tuple, np.ndarray)) else [got]
        for i, value in enumerate(values):
            if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
                hint = "a missing return" if value is None else "a Tensor instead of its .item()"
                self.fail(f"{name}, number {i}, on rank {rank} must be a number; got {_short_repr(value)}", hint)
        self.array(np.asarray(values, float), np.asarray(want, float), name=name, rank=rank, cause=cause, rtol=rtol, instead=instead)

    def among(
        self, arrays: list[np.ndarray] | None, values: np.ndarray, part: float = 1.0, *, name: str, rank: int, cause: str = ""
    ) -> None:
        """Check that a rank sent at least this share of `values`, in any order; skipped if `arrays` is None (see `Ranks.arrays`)."""
        if arrays is None:
            return
        sent = np.sort(np.concatenate([np.zeros(0), *(a.astype(float) for a in arrays if a.dtype.kind == "f")]))
        wanted, near = values.ravel(), 1e-9 * float(np.abs(values).max(initial=0))
        if wanted.size > MOST_SOUGHT:
            wanted, part = self.random.choice(wanted, MOST_SOUGHT), part - 0.01  # seven standard deviations of the share that is found
        there = np.searchsorted(sent, wanted + near, "right") > np.searchsorted(sent, wanted - near)
        if np.count_nonzero(there) < part * wanted.size:
            self.fail(f"{name} is not in what rank {rank} sent", cause)

    def passed(self) -> None:
        """Print that the check passed, and record it for `saving.save`."""
        students.record_check(self.what, True)
        old = sorted(students.unfinished_definitions & set(re.findall(r"\w+", self.what)))
        note = f" But the last cell with {', '.join(old)} has ended with an error: an earlier version may have been checked." if old else ""
        print(f"{self.what}: all ranks have what was expected.{note}")

    def tuple(self, got: object, length: int, *, name: str, rank: int) -> tuple:
        """Return `got` as a tuple, after checking that it is a tuple or list of this length."""
        if not isinstance(got, (tuple, list)) or len(got) != length:
            found = f"{len(got)} values" if isinstance(got, (tuple, list)) else _short_repr(got)
            wanted = f"{length} values" if length > 1 else "a list with one value, such as [grad_x]"
            self.fail(f"{name} on rank {rank} must return {wanted}; got {found}", "a missing return, or a forgotten value")
        return tuple(got)


def _describe_known_mistake(got: np.ndarray, want: np.ndarray, instead: KnownMistakes) -> str:
    """Name the known mistake that gives this array, to the last bit or, if the mistake is not nearly right, approximately."""
    for what, array in ((instead() if callable(instead) else instead) or {}).items():
        array = np.asarray(array)
        if got.shape != array.shape or got.dtype.kind not in "fiu":
            continue
        if np.array_equal(got, array, equal_nan=True) and not np.array_equal(array, want, equal_nan=True):
            return what
        near = 1e-5 * float(np.max(np.abs(array), initial=0))
        right = array.shape == want.shape and np.all(np.abs(want - array) <= 2 * near)
        if near and not right and np.all(np.abs(got.astype(float) - array) <= near):
            return what
    return ""


def _describe_relation(got: np.ndarray, want: np.ndarray, tolerance: float) -> str:
    """Describe how wrong values relate to the right ones, as the end of a sentence; empty if no relation is visible."""
    if not want.size or got.dtype.kind not in "fiu":
        return ""
    got, want = got.astype(float), want.astype(float)
    special = ~np.isfinite(want) | (want != 0) & (np.abs(want) < 1e-290)
    if special.any():  # what is strange in other arrays may be right here
        return ""
    if not np.isfinite(got).all() and np.isfinite(want).all():
        many = np.count_nonzero(~np.isfinite(got))
        are = "is" if many == 1 else "are"
        return f"; {many} {are} inf or NaN: exp of a large number, 0 / 0, or values that were never written after np.empty"
    largest, strange = float(np.max(np.abs(want))), np.abs(got[got != 0])
    if not np.all((strange > 1e-290) & (strange < 1e9 * (largest or 1.0))):
        return (
            "; some values were never written: np.empty leaves memory as it is, and a collective with a root fills only the root's buffer"
        )
    if want.size < 3:
        return ""
    if np.max(np.abs(got - want)) <= 1e-3 * largest + 100 * tolerance:
        return ""  # nearly right: no relation to report
    factor = float(np.vdot(got, want)) / (float(np.vdot(want, want)) or 1.0)
    if not largest or not np.any(got):
        return "; all are 0" if not np.any(got) else ""
    if np.ptp(want) and np.allclose(got, factor * want, rtol=0, atol=1e-4 * abs(factor) * largest) and abs(factor - 1) > 1e-3:
        return f"; each is {factor:.4g} times what it should be"
    if want.ndim == 2 and want.shape[0] == want.shape[1] and np.allclose(got.T, want, rtol=0, atol=1e-5 * largest):
        return "; they are the right ones, transposed"
    if np.allclose(np.sort(got, axis=None), np.sort(want, axis=None), rtol=0, atol=1e-5 * largest):
        return "; they are the right ones, in another order"
    return ""


def _short_repr(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, Opaque):
        return str(value)
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
