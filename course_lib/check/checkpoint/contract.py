"""Limits of part 27's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import Limit

_SENT = "Send at most {bytes} bytes, in at most {calls} calls."
BYTES = {name: Limit(name, _SENT.format(bytes="{:,}", calls=16), 1000) for name in ("save", "load")}
CALLS = {name: Limit(name, _SENT.format(bytes="1,000", calls="{}"), 16) for name in ("save", "load")}
ALWAYS_COMPLETE = Limit(
    "save",
    "Whenever a rank dies, the disk must have either the previous checkpoint or this one.",
)
ONLY_THIS = Limit(
    "save",
    "When the function returns on any rank, the folder has only the files of this one.",
)
OPENS = Limit("load", "Opens only files that have something for this rank.")

NOT_DRAWN = {
    "save": {
        "many ranks": "the four ranks that have a disk; files of more ranks lie in the folder",
        "results": "it returns nothing",
    },
    "load": {
        "layouts": "it is given no arrays",
    },
}
