"""``python -m course_lib.engine FOLDER`` is one rank that was not forked."""

import sys

from course_lib.engine import application

if __name__ == "__main__":
    folder, sys.argv = sys.argv[1], ["course_lib.engine"]
    application.serve(application.prepare(folder))
