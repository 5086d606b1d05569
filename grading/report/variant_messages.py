"""Match messages with the wrong answers of variants.py that cause them, to name mistakes; cached, as running them takes a minute."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from grading.authoring import answers, build
from grading.authoring.answers import Answer
from grading.paths import ROOT, SOLUTIONS
from grading.report.mistakes import normalize_message
from grading.submission import sandbox

CHECK_SOURCES = ("course_lib/check", "course_lib/sim/schedule/check", "course_lib/sim/plan/check.py")  # where the messages come from


def name_mistakes(part: str, home: Path) -> tuple[dict[str, list[str]], str]:
    """Return the variants that cause each message; run them first if their messages are not known.

    Returns
    -------
    dict of str to list of str
        Messages as from `mistakes.normalize_message`, and the variants' names, each with its docstring.
    str
        Why there are none, or an empty string.
    """
    wrong = [answer for answer in answers.read(part) if answer.loses]
    if not wrong:
        return {}, f"There are no wrong answers in solutions/{part}/variants.py, so the mistakes have no names."
    path, now = home / "reports" / "variants" / f"{part}.json", variants_fingerprint(part)
    said = _kept(path, now)
    if said is None:
        try:
            print(f"{part}: running its {len(wrong)} wrong variants first, once, to recognize the mistakes. {sandbox.isolation_notice()}")
            said = collect_messages(part, wrong)
        except sandbox.NoSandbox as problem:
            return {}, f"The wrong variants could not be run, so the mistakes have no names. {problem}"
        build.write_atomically(json.dumps({"fingerprint": now, "said": said}, indent=1), path)
    found: dict[str, list[str]] = {}
    for answer in wrong:
        for text in dict.fromkeys(map(normalize_message, said.get(variant_id(answer), []))):
            found.setdefault(text, []).append(variant_title(answer))
    return found, ""


def variants_fingerprint(part: str) -> str:
    """Return a fingerprint that changes whenever the variants may cause other messages."""
    paths = [SOLUTIONS / part / "variants.py", SOLUTIONS / part / f"{part}.py"]
    for name in CHECK_SOURCES:
        paths += sorted((ROOT / name).rglob("*.py")) or [ROOT / name]
    digest = hashlib.sha256()
    for path in paths:
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def collect_messages(part: str, wrong: list[Answer]) -> dict[str, list[str]]:
    """Collect the messages of failed tests for each wrong answer.

    Raises
    ------
    sandbox.NoSandbox
        There is none, and nobody has allowed grading without one.
    """
    from tqdm import tqdm

    from grading.variants import RunningPart

    said = {}
    with RunningPart(part) as running:
        for answer in tqdm(wrong, unit="variant"):
            said[variant_id(answer)] = running.run_answer(answer)[1]
    return said


def variant_id(answer: Answer) -> str:
    """Return a variant's name as in variants.py."""
    return f"{answer.function}__{answer.name}"


def variant_title(answer: Answer) -> str:
    """Return a variant's readable name, and the first line of its docstring."""
    return answer.name.replace("_", " ") + (f": {answer.about}" if answer.about else "")


def _kept(path: Path, now: str) -> dict[str, list[str]] | None:
    try:
        kept = json.loads(path.read_text())
        return kept["said"] if kept["fingerprint"] == now else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
