"""The instructor's side: build, release, grade, give feedback. course_lib never imports it."""

import sys

# jsonschema takes it where it is there: a second, in each of the programs here, for a check that no notebook has.
sys.modules.setdefault("rfc3987_syntax", None)


def _end_quietly_on_interrupt(kind, error, trace) -> None:
    """Ctrl-C ends a command in a sentence, also while it still imports what it needs."""
    if issubclass(kind, KeyboardInterrupt):
        print("\nInterrupted.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # one of these modules is run as a command
    sys.excepthook = _end_quietly_on_interrupt
