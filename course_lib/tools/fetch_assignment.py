"""Link notebooks fetched from nbgrader's exchange on a hub to the student's copies in the work folder, so that there is only one."""

from __future__ import annotations

from pathlib import Path

from nbgrader.exchange.default import ExchangeFetchAssignment


class FetchAssignmentAsLink(ExchangeFetchAssignment):
    """Fetched folder of a released part in which each of the student's notebooks is a link to the student's copy, which is handed in."""

    def do_copy(self, src: str, dest: str) -> None:
        """Copy the release, then link to the student's notebooks."""
        super().do_copy(src, dest)
        for copy in Path(dest).glob("*.ipynb"):
            mine = copy.parent.parent / copy.name
            if mine.is_file() and not copy.is_symlink():
                link = copy.with_suffix(".link")
                link.symlink_to(Path("..") / copy.name)
                link.replace(copy)
