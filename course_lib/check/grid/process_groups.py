"""Check of part 02's `get_info`: a rank's place in the grid, whom its groups reach, and its part of a layer.

`on_ranks` has the function that runs on the ranks; this class runs in the notebook's kernel.
"""

from __future__ import annotations

import itertools

import numpy as np

from course_lib.check import Check
from course_lib.check.grid.on_ranks import reach_groups
from course_lib.mesh import Mesh, grids

SWAPPED = "color and key swapped: the color is what all members share"
PARTS = "only Megatron's second layer is split by rows (in_dim); all others are split by columns (out_dim)"
NUMBERING = "a grid that is not numbered row by row; mp is its minor axis"
INDICES = {
    "mp_idx": "the index in the row is the remainder of rank / mp_size",
    "dp_idx": "the index in the column is rank / mp_size, rounded down",
}


class ProcessGroupsCheck(Check):
    """A `Check` of `get_info` on grids of up to eight ranks."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def by_hand(self, first: Mesh, *sizes: int) -> None:
        """Check a grid, then all grids of these sizes, each with the four kinds of layers."""
        for size, grid in ((first.size, first), *((n, grid) for n in sizes for grid in grids(n))):
            for is_fc1, is_megatron_mp in ((True, False), (False, False), (True, True), (False, True)):
                layer = dict(is_fc1=is_fc1, is_megatron_mp=is_megatron_mp, in_dim=16, out_dim=24)
                shown = grid is first and is_fc1 and not is_megatron_mp
                answers = self._answers(size, grid, list(range(8)), layer, shown)
                self._place(grid, answers, INDICES)
                for r, (_, _, in_mp, in_dp, *_) in enumerate(answers):
                    self._explain_members(grid, r, list(in_mp), list(in_dp))
                self._parts(grid, answers, layer)
        self.passed()

    def place(self, size: int, grid: Mesh) -> None:
        """Check the two indices."""
        answers = self._answers(size, grid, [0] * 8, dict(in_dim=24, out_dim=24))
        self._place(grid, answers, dict.fromkeys(INDICES, NUMBERING))

    def members(self, size: int, grid: Mesh) -> None:
        """Check whom the two groups reach, and in which order, by a secret that each rank is given."""
        secrets = self.random.permutation(10**6)[:8]
        cause = "color and key swapped, or members that are not in rank order"
        for r, answer in enumerate(self._answers(size, grid, secrets.tolist(), dict(in_dim=24, out_dim=24))):
            for name, got, group in (("mp_comm", answer[2], grid.group("mp", r)), ("dp_comm", answer[3], grid.group("dp", r))):
                self.array(got, secrets[list(group)], name=f"{name} (the ranks in it)", rank=r, cause=cause)
        self.covers("group order", "group sizes", "repetition", "same ranks twice", "sizes")

    def layers(self, grid: Mesh) -> None:
        """Check the part of the weight, for the four kinds of layers, with a large dimension, and one of a single part."""
        for is_fc1, is_megatron_mp in itertools.product((True, False), repeat=2):
            drawn, odd = (int(d) for d in self.random.permutation(np.arange(3, 40, 2))[:2])
            one, two, three = grid.mp * (2**27 + odd), grid.mp, grid.mp * drawn
            for in_dim, out_dim in ((one, two), (one, three), (three, two)):
                layer = dict(is_fc1=is_fc1, is_megatron_mp=is_megatron_mp, in_dim=in_dim, out_dim=out_dim)
                self._parts(grid, self._answers(grid.size, grid, [0] * 8, layer), layer)

    def _answers(self, size: int, grid: Mesh, secrets: list[int], layer: dict, shown: bool = False) -> list[tuple]:
        self.case = f"mp_size {grid.mp}, dp_size {grid.dp}, " + ", ".join(f"{k} {v}" for k, v in layer.items())
        asked = dict(size=size, mp_size=grid.mp, dp_size=grid.dp) | layer
        order = list(range(8)) if self.show else self.random.permutation(8).tolist()  # hidden: any rank may have any place
        given = {r: asked | {"secret": secrets[place], "place": place} for place, r in enumerate(order)}
        replies = self.ranks.call(reach_groups, [given[r] for r in range(8)], show=shown)
        found = [replies[r] for r in order]
        return [self.tuple(answer, 6, name="get_info", rank=r) for r, answer in enumerate(found[:size])]

    def _place(self, grid: Mesh, answers: list[tuple], causes: dict[str, str]) -> None:
        for r, (mp_idx, dp_idx, *_) in enumerate(answers):
            row, column = grid.coordinates(r)
            self.value(mp_idx, column, name="mp_idx", rank=r, cause=causes["mp_idx"])
            self.value(dp_idx, row, name="dp_idx", rank=r, cause=causes["dp_idx"])

    def _explain_members(self, grid: Mesh, r: int, in_mp: list, in_dp: list) -> None:
        """Check whom the groups reach by rank, and name the mistake that gives such groups."""
        row, column = list(grid.group("mp", r)), list(grid.group("dp", r))
        if in_mp == column != row and in_dp == row:
            self.fail(f"on rank {r}, mp_comm has the ranks of dp_comm and vice versa", f"{SWAPPED}; or returned in the wrong order")
        for name, other, got, want in (("mp_comm", "dp_comm", in_mp, row), ("dp_comm", "mp_comm", in_dp, column)):
            if got != want:
                fewer = len(got) < len(want) and set(got) < set(want)
                cause = f"split from {other} instead of comm" if fewer else SWAPPED
                if sorted(got) == sorted(want):
                    cause = "a key that does not keep the ranks in order"
                self.fail(f"{name} on rank {r} contains ranks {[int(g) for g in got]}, expected {want}", cause)

    def _parts(self, grid: Mesh, answers: list[tuple], layer: dict) -> None:
        rows = layer["is_megatron_mp"] and not layer["is_fc1"]
        for r, (*_, part_in, part_out) in enumerate(answers):
            self.value(part_in, layer["in_dim"] // (grid.mp if rows else 1), name="part_in_dim", rank=r, cause=PARTS)
            self.value(part_out, layer["out_dim"] // (1 if rows else grid.mp), name="part_out_dim", rank=r, cause=PARTS)
