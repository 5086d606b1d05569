"""Instructor tools: build, release, grade and give feedback. course_lib never imports this package."""

import sys

# If rfc3987_syntax is installed, jsonschema imports it: a second in each command here, for a check that no notebook needs.
sys.modules.setdefault("rfc3987_syntax", None)


def _end_quietly_on_interrupt(kind, error, trace) -> None:
    """End a command with one line on Ctrl-C, even while it is still importing its dependencies."""
    if issubclass(kind, KeyboardInterrupt):
        print("\nInterrupted.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # one of these modules runs as a command
    sys.excepthook = _end_quietly_on_interrupt
