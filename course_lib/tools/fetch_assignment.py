"""On a hub, what a student fetches from nbgrader's exchange is the notebook that lies in the work folder already: there is one, not two."""

from __future__ import annotations

from pathlib import Path

from nbgrader.exchange.default import ExchangeFetchAssignment


class FetchAssignmentAsLink(ExchangeFetchAssignment):
    """A released part's folder, in which each notebook that the student has leads to the student's own; that one is handed in."""

    def do_copy(self, src: str, dest: str) -> None:
        """Copy what was released, and lead to the student's own notebooks."""
        super().do_copy(src, dest)
        for copy in Path(dest).glob("*.ipynb"):
            mine = copy.parent.parent / copy.name
            if mine.is_file() and not copy.is_symlink():
                link = copy.with_suffix(".link")
                link.symlink_to(Path("..") / copy.name)
                link.replace(copy)
