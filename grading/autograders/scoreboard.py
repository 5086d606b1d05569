"""Part 20's entry as columns of the platform's own leaderboard. Handles are left out: the platforms have their own."""

from __future__ import annotations

from course_lib.sim.schedule.score import SETTINGS

LEADERBOARD_PART = "20_custom_strategy"
RUN_COLUMNS = (("MFU in %", "utilisation", 100, "desc"), ("memory in GB", "memory", 1e-9, "asc"), ("time in s", "time", 1, "asc"))


def columns(entry: dict) -> list[tuple[str, float, str]]:
    """Return each column's name, value and sort order, the primary column first."""
    found = [("score", round(float(entry["score"]), 3), "desc")]
    for run in entry["runs"]:
        found += [(_name(word, run["settings"]), round(float(run[key]) * unit, 2), order) for word, key, unit, order in RUN_COLUMNS]
    return found


def column_names(part: str) -> list[str]:
    """Return the columns of a part's scoreboard; an empty list if it has none."""
    return ["score", *(_name(word, settings) for settings in SETTINGS for word, *_ in RUN_COLUMNS)] if part == LEADERBOARD_PART else []


def _name(word: str, settings: dict) -> str:
    return f"{word}, {settings['world_size']} ranks"
