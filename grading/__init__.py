"""The instructor's side: build, release, grade, give feedback. course_lib never imports it."""

import sys

# jsonschema takes it where it is there: a second, in each of the programs here, for a check that no notebook has.
sys.modules.setdefault("rfc3987_syntax", None)
