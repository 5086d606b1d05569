"""The status board where ranks are kept apart: only the relay's switch writes to it."""

from __future__ import annotations

from course_lib.collectives import board as status
from course_lib.collectives.board import Board


class Words(Board):
    """A board that only the switch writes to."""

    def __init__(self, size: int):
        self.size, self.rank, self.round, self.left = size, 0, 0, 0
        self.hosts = None
        self.rows = [[0] * (status.SEEN + size) for _ in range(size)]
        self._said = [""] * size

    def text(self, rank: int) -> str:
        return self._said[rank]

    def _come(self, rank: int, row: list[int], others: list[int]) -> bool:
        return False  # the switch sees what comes at once

    def put(self, rank: int, text: str | None = None, **words: int) -> None:
        """Write words of a rank's row, by their names."""
        for name, word in words.items():
            self.rows[rank][getattr(status, name)] = word
        if text is not None:
            self._said[rank] = text
