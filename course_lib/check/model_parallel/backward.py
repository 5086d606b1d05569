"""Checks of the backward pass of a model parallel layer (parts 05 and 06)."""

from __future__ import annotations

import numpy as np

from course_lib.check.cases.layouts import LAYOUTS
from course_lib.check.model_parallel import contract, on_ranks
from course_lib.check.model_parallel.forward import LayerCheck, usual_cause

OUTPUT, INPUT = "the gradient of the output", "the gradient of the input"


class BackwardCheck(LayerCheck):
    """A `Check` of parts 05 and 06."""

    def sliced(self, function: str, *sizes: int) -> BackwardCheck:
        """Check a function that takes the columns of an index, which is not the rank's own."""
        for size in sizes:
            for dtype in self.dtypes():
                for batch, width in [(3, 8 // size)] if self.show else self.shapes(2, 9):
                    self.case = f"mp_size {size}, a batch of {batch}, {size * width} outputs, {np.dtype(dtype)}"
                    self._sliced(function, self.draw(batch, size * width, dtype=dtype), size)
        self.turns(
            function,
            lambda wholes, i: np.split(wholes[i], 2, axis=1)[i],
            by_index=True,
            own_results=False,  # columns of one sample are contiguous: no copy is needed
            layouts=LAYOUTS,
        )
        return self

    def many(self, function: str) -> BackwardCheck:
        """Check the columns of some ranks of larger groups than there are ranks here."""
        for size in (5, 16, 17):
            indices = self.random.permutation(size)[:4].tolist()
            indices[0] = size - 1
            self.case = f"mp_size {size}, {3 * size} outputs"
            self._sliced(function, self.draw(2, 3 * size), size, indices)
        self.covers("many ranks")
        return self

    def _sliced(self, function: str, whole: np.ndarray, size: int, indices: list[int] | None = None) -> None:
        indices = indices or [(r + 1) % size for r in range(4)]
        parts = np.split(whole, size, axis=1)
        given = [dict(function=function, array=whole, index=i, size=size) for i in indices]
        known = {f"the columns for index {i}": part for i, part in enumerate(parts)}
        for r, (got, after) in enumerate(self.places.call(on_ranks.collect_for_index, given, show=self.show)):
            how = dict(name=f"{OUTPUT} (mp_group_idx={indices[r]})", rank=r)
            cause = "rows instead of columns, or a slice that starts in the wrong place"
            self.unchanged(after, whole, r)
            self.array(got, parts[indices[r]], cause=cause, contiguous=contract.COPY, instead=known, **how)
            self.silent(function, how["name"], r, "every rank already has the whole gradient")
            self.requests_completed(self.places.unended[r], r)

    def scattered(self, function: str, *sizes: int) -> BackwardCheck:
        """Check a function that leaves each rank with its columns of the sum over its group."""
        for size in sizes:
            for dtype in self.dtypes():
                for batch, width in [(3, 8 // size)] if self.show else self.shapes(2, 9):
                    self.case = f"mp_size {size}, a batch of {batch}, {size * width} hidden units, {np.dtype(dtype)}"
                    terms = [self.draw(batch, size * width, dtype=dtype) * (dtype(100) ** r if self.show else dtype(1)) for r in range(4)]
                    self._scattered(function, terms, size)
        self.turns(
            function,
            lambda terms, i: np.split(np.sum(terms, axis=0), 2, axis=1)[i],
            rtol=1e-12,
        )
        return self

    def _scattered(self, function: str, terms: list[np.ndarray], size: int) -> None:
        answers = self.places.call(on_ranks.collect, [dict(function=function, array=t, size=size) for t in terms], show=self.show)
        rtol, how = 1e-5 if terms[0].dtype == np.float32 else 1e-12, dict(name=INPUT)
        cause = "the blocks that MPI cuts are not columns, a block is not transposed back afterwards, or the sum is not over the group"
        for r, (got, given) in enumerate(answers):
            group = terms[r // size * size :][:size]
            n, scale = len(group), float(np.abs(group).max())
            parts = np.split(sum(group), n, axis=1)
            known = {f"the columns of rank {i} of the group": part for i, part in enumerate(parts)}
            known["the columns of this rank's own term of the sum"] = np.split(terms[r], n, axis=1)[r % size]
            self.unchanged(given, terms[r], r)
            self.array(got, parts[r % size], rank=r, cause=cause, rtol=rtol, scale=scale, contiguous=True, instead=known, **how)
            self.cost(function, "Reduce_scatter", n, terms[r].nbytes, r, "one reduce-scatter is enough")

    def same_output(self, function: str, *sizes: int) -> BackwardCheck:
        """Check part 06's gradient of the partial output: all ranks of a group are given the same array, and need all of it."""
        cause = "a part or a multiple of the gradient: see by how much the loss changes when one rank's partial output changes"
        return self._same(function, OUTPUT, cause, "outputs", sizes)

    def same_input(self, function: str, *sizes: int) -> BackwardCheck:
        """Check part 06's gradient of the input: each rank is given its own, which is complete."""
        cause = "gradients of different hidden units, added up or put together: compare the shape of the product with what fc1 needs"
        return self._same(function, INPUT, cause, "hidden units on each rank", sizes)

    def _same(self, function: str, name: str, cause: str, columns: str, sizes: tuple[int, ...]) -> BackwardCheck:
        for size in sizes:
            for dtype in self.dtypes():
                for batch, width in [(3, 4 // size)] if self.show else self.shapes(2, 9):
                    width *= size if width > 1 or name == OUTPUT else 1
                    self.case = f"mp_size {size}, a batch of {batch}, {width} {columns}, {np.dtype(dtype)}"
                    self._unmoved(function, name, cause, self.draw(4, batch, width, dtype=dtype), size)
        self.turns(function, lambda arrays, i: arrays[i], by_index=name == OUTPUT, own_results=False)
        return self

    def _unmoved(self, function: str, name: str, cause: str, arrays: np.ndarray, size: int) -> None:
        if not self.show and arrays.dtype.kind == "f":
            arrays[:, 0, 0] = np.inf  # passed on as it is
        call, more = on_ranks.collect, [{}] * 4
        if name == OUTPUT:
            arrays = [arrays[r // size] for r in range(4)]  # replicated over the group
            call, more = on_ranks.collect_for_index, [dict(index=r % size) for r in range(4)]
        given = [dict(function=function, array=arrays[r], size=size) | more[r] for r in range(4)]
        for r, (got, after) in enumerate(self.places.call(call, given, show=self.show)):
            self.unchanged(after, arrays[r], r)
            self.array(got, arrays[r], name=name, rank=r, cause=usual_cause(got, arrays[r], cause), contiguous=True)
            self.silent(function, name, r, "compare what a rank has with what it needs")
            self.requests_completed(self.places.unended[r], r)

    def layer(self, style: str, *sizes: int) -> BackwardCheck:
        """Compare the gradient of a layer's input with the unsharded product; `style` is "naive" or "megatron"."""
        for size in sizes:
            batch, width, out = self.sizes(3, 2, 9)
            out *= size if style == "naive" else 1
            grad, w = self.random.standard_normal((batch, out)), self.random.standard_normal((size * width, out))
            self.case = f"mp_size {size}, a batch of {batch}, {size * width} hidden units, {out} outputs"
            parts = [np.ascontiguousarray(part) for part in np.split(w, size, axis=1 if style == "naive" else 0)]
            given = [dict(style=style, grad=grad, w=parts[r % size], size=size) for r in range(4)]
            for r, got in enumerate(self.places.call(on_ranks.backward, given, show=self.show)):
                want, cause = np.split(grad @ w.T, size, axis=1)[r % size], "a rank needs the gradient of its own hidden units"
                self.array(got, want, name="the gradient of the layer's input", rank=r, cause=cause, rtol=1e-12)
        return self
