"""Rules for AI assistants in a student's folder: `ai_tutor.md`, under the names that assistants look for."""

from __future__ import annotations

from pathlib import Path

RULES = Path(__file__).with_suffix(".md")  # an instructor may edit or empty it
GENERATED_MARK = "<!-- Written by make lab. To keep changes of your own here, delete this line. -->"
AGENTS_FILE = "AGENTS.md"  # read by most assistants
POINTERS = ("CLAUDE.md", "GEMINI.md")  # read by those that have a name of their own; both import other files with @


def write(work: Path, rules: Path = RULES) -> list[Path]:
    """Write the rules into a student's folder; files that the student has written or made her own are never touched.

    Parameters
    ----------
    work : Path
        The student's folder.
    rules : Path
        The rules in Markdown; if it is missing or empty, files written earlier are removed.

    Returns
    -------
    list of Path
        The files that are new.
    """
    text = rules.read_text(encoding="utf-8").strip() if rules.is_file() else ""
    contents = {AGENTS_FILE: text} | dict.fromkeys(POINTERS, f"@{AGENTS_FILE}")
    new = []
    for name, content in contents.items():
        path = work / name
        if path.is_symlink() or (path.exists() and not _is_ours(path)):
            continue
        if not text:
            path.unlink(missing_ok=True)
            continue
        new += [] if path.exists() else [path]
        path.write_text(f"{GENERATED_MARK}\n\n{content}\n", encoding="utf-8")
    return new


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text(encoding="utf-8").startswith(GENERATED_MARK)
    except (OSError, ValueError):
        return False
