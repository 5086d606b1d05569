"""Check of part 33's repairs: functions of two runs that were wrong, against the same mathematics on one process."""

from __future__ import annotations

import numpy as np

from course_lib.autograd import Sequential
from course_lib.autograd.block_attention import block_attention, block_backward
from course_lib.check.groups import GroupCheck
from course_lib.check.silent_bug.on_ranks import call_accumulate, call_own_gradients
from course_lib.gpt.model.decoder import Sizes, layers
from course_lib.gpt.silent_bugs.step import loss_and_backward
from course_lib.placement import sharded


class RepairCheck(GroupCheck):
    """A `Check` of a repaired function."""

    def accumulate(self, *counts: int, times: int = 1, left: bool = False) -> RepairCheck:
        """Check `accumulate` with these numbers of micro-batches, `times` in a row; if `left`, there are gradients before the first."""
        for count in counts:
            heads, length, each = int(self.random.integers(1, 3)), *self.sizes(2, 2, 6)
            sizes, seed = (7 + length, 4 * heads, heads, 1, length), int(self.random.integers(1 << 30))
            self.case = f"{count} micro-batches of {each} texts"
            shape = (4, times, count, each, length + 1)
            texts = self.random.integers(0, sizes[0], shape)  # other ones on each rank
            model = Sequential(*layers(Sizes(*sizes), seed=seed, dtype=np.float64))
            grads = [self.random.standard_normal(p.shape) for p in model.parameters()] if left else None
            given = [dict(sizes=sizes, seed=seed, calls=[list(call) for call in own], grads=grads) for own in texts]
            answers = self.ranks.call(call_accumulate, given, show=self.show)
            for r, (found, most) in enumerate(answers):
                if most > each:
                    cause = "micro-batches that are joined to one batch, whose activations take as much memory as if there were none"
                    self.fail(f"accumulate on rank {r} gives the model {most} texts at once; a micro-batch has {each}", cause)
                for (loss, got), micro_batches in zip(found, texts[r], strict=True):
                    model.zero_grad()
                    want = loss_and_backward(model, np.concatenate(micro_batches))
                    self.numbers(loss, [want], name="the loss", rank=r, cause="the loss of one micro-batch, or a sum instead of a mean")
                    for (name, p), grad in zip(model.named_parameters(), got, strict=True):
                        self._gradient(grad, p.grad, name.removeprefix("modules."), count, r)
        return self

    def _gradient(self, got: object, want: np.ndarray, name: str, count: int, r: int) -> None:
        known = {f"{count} times what it should be: the losses of micro-batches are means, so their mean counts": count * want}
        cause = "gradients of earlier micro-batches or calls, thrown away or kept where they should not be; or other ranks' gradients"
        self.array(got, want, name=f"the gradient of {name}", rank=r, rtol=1e-9, cause=cause, instead=known if count > 1 else None)

    def own_gradients(self, size: int) -> RepairCheck:
        """Check `own_gradients` in groups of this size: the gradients of q, k and v after attention over all ranks' positions."""
        groups, (batch, each, width) = self.groups(size), self.sizes(3, 2, 6)
        dtype = np.float32 if size == 2 else np.float64
        self.case, heads = self.describe_groups(groups, dtype), int(self.random.integers(1, 4))
        given: list = [None] * 4
        wholes = []
        for color, group in enumerate(groups):
            wholes.append([self.random.standard_normal((batch, heads, each * len(group), width)).astype(dtype) for _ in range(4)])
            for key, r in enumerate(group):
                cut = (np.ascontiguousarray(np.split(array, len(group), axis=2)[key]) for array in wholes[-1])
                given[r] = dict(zip("qkv", cut, strict=False)) | dict(place=(color, key))
                given[r]["grad"] = np.ascontiguousarray(np.split(wholes[-1][3], len(group), axis=2)[key])
        answers = self.ranks.call(call_own_gradients, given, show=self.show)
        for group, (q, k, v, grad) in zip(groups, wholes, strict=True):
            every = np.arange(q.shape[2])
            out, lse = block_attention(q, k, v, every, every)
            wants, rtol = block_backward(grad, out, lse, q, k, v, every, every), 1e-9 if dtype is np.float64 else 1e-4
            for i, (name, want) in enumerate(zip("qkv", wants, strict=True)):
                got, n, cause = [answers[r][i] for r in group], len(group), "a sum over the ranks; q is each rank's own"
                if i:
                    cause = "summands of other ranks that are missing, or added up after the cut, where each rank has other positions"
                right_shape = all(isinstance(part, np.ndarray) and part.shape == (batch, heads, each, width) for part in got)
                if i and n > 1 and right_shape and np.allclose(n * np.concatenate(got, axis=2), want, rtol, rtol):
                    cause = "a mean in the place of a sum"
                self.distributed(got, sharded(2), want, name=f"the gradient of {name}", ranks=group, cause=cause, rtol=rtol)
        return self
