"""Check of part 01's `split_data`: which samples each rank of a grid holds."""

from __future__ import annotations

import numpy as np

from course_lib.check.cases.layouts import LAYOUTS
from course_lib.check.cases.repetition import Call, in_turn
from course_lib.check.groups import GroupCheck
from course_lib.mesh import Mesh

VISIBLE_CAUSE = "rank or rank % mp_size used as the number of the rank's copy of the model"
GRID_CAUSE = "ranks of the same model parallel group that get different samples, or samples in another order"
OTHER_SHAPES = (((3, 2), (10,)), ((), (10,)), ((2, 3, 2), ()), ((6,), (2, 3)))  # of one sample and of its label
SIZES_CAUSE = "a size or dtype that is hard-coded in the function instead of taken from its arguments"


class SplitDataCheck(GroupCheck):
    """A `Check` of `split_data` on the eight ranks, which answer for grids of any size."""

    def by_hand(self, grid: Mesh) -> None:
        """Check twelve numbered samples, and name the mistake if it is a known one."""
        x, y = np.arange(24.0).reshape(12, 2), np.arange(12)
        self._compare(grid, x, y, VISIBLE_CAUSE, known=True)
        self.turns()
        self.passed()

    def table(self, grid: Mesh) -> None:
        """Check a drawn table of samples; another dtype is no mistake here (`images` checks it)."""
        n, width = grid.dp * self.sizes(1, 2, 6)[0], self.sizes(1, 1, 5)[0]
        self.case = f"mp_size {grid.mp}, dp_size {grid.dp}, {n} samples"
        for _ in range(2):  # the second time, other samples: an answer may keep those of the first
            self._compare(grid, self.random.random((n, width)), self.random.permutation(n), GRID_CAUSE, dtype=False)

    def images(self, *several: Mesh) -> None:
        """Check drawn images on several grids, each with another dtype."""
        # each dtype once, so that none is missed by chance
        dtypes = self.random.permutation([np.float32, np.float64, np.uint8, np.int32])
        shapes = [OTHER_SHAPES[i] for i in self.random.permutation(len(OTHER_SHAPES))]
        for grid, dtype in zip(several, dtypes, strict=True):
            for each, (image, label) in ((1, shapes[0]), (self.sizes(1, 2, 6)[0], shapes.pop())):
                n = grid.dp * each
                x = self.random.permutation(n * int(np.prod(image))).reshape(n, *image).astype(dtype)
                y = self.random.permutation(n * int(np.prod(label))).reshape(n, *label).astype(np.int16)
                self.case = f"mp_size {grid.mp}, dp_size {grid.dp}, samples of shape {x.shape} and {x.dtype}, labels of shape {y.shape}"
                self._compare(grid, x, y, SIZES_CAUSE)

    def turns(self) -> None:
        """Check calls in turn for grids of up to 17 copies, with training data in several layouts."""
        each, width = self.sizes(2, 2, 5)
        calls, blocks = [], []
        for layout, copies in zip(LAYOUTS, (4, 17, 4, 1, 5, 16), strict=True):
            samples = (copies * each, width)
            x = self.random.permutation(np.prod(samples)).reshape(samples).astype(float)
            y = self.random.permutation(len(x))
            numbers = self.random.integers(3 * copies, size=8).tolist()
            calls.append(Call([[x, y, 3, copies, number] for number in numbers], layout=layout))
            blocks.append([number // 3 for number in numbers])
        self.case = f"{each} samples for each copy, several calls in turn"
        results = in_turn(self, "split_data", calls, own_results=False)
        for number, (call, answers, copies) in enumerate(zip(calls, results, blocks, strict=True), 1):
            for r, (answer, copy) in enumerate(zip(answers, copies, strict=True)):
                parts = self.tuple(answer, 2, name="split_data", rank=r)
                for i, name in enumerate(("split_x_train", "split_y_train")):
                    want = call.arguments[r][i][copy * each : (copy + 1) * each]
                    self.array(parts[i], want, name=f"{name} of call {number}", rank=r, cause=GRID_CAUSE)
        self.covers("dtypes", "sizes", "layouts", "many ranks")

    def _compare(self, grid: Mesh, x: np.ndarray, y: np.ndarray, cause: str, dtype: bool = True, known: bool = False) -> None:
        """Compare what `split_data` returns for every rank of the grid, eight at a time, with the block of its row."""
        each = len(x) // grid.dp
        given = dict(x_train=x, y_train=y, mp_size=grid.mp, dp_size=grid.dp)
        for first in range(0, grid.size, 8):
            asked = [(first + i) % grid.size for i in range(8)]
            answers = self.ranks.call("split_data", [given | {"rank": r} for r in asked], show=self.show)
            for r, answer in zip(asked, answers, strict=True):
                split_x, split_y = self.tuple(answer, 2, name="split_data", rank=r)
                start = grid.coordinates(r)[0] * each
                for name, got, whole in (("split_x_train", split_x, x), ("split_y_train", split_y, y)):
                    mistakes = known_blocks(grid, whole) if known else None
                    options = dict(cause=cause, dtype=dtype, instead=mistakes)
                    self.array(got, whole[start : start + each], name=name, rank=r, **options)


def known_blocks(grid: Mesh, whole: np.ndarray) -> dict[str, np.ndarray]:
    """Return what known mistakes give: another copy's block, or every dp_size-th sample."""
    each, copies = len(whole) // grid.dp, range(grid.dp)
    known = {f"the block of copy {i}, samples {i * each} to {i * each + each - 1}": whole[i * each :][:each] for i in copies}
    return known | {f"every {grid.dp}th sample, starting at {i}, instead of a block": whole[i :: grid.dp] for i in copies}
