"""``python -m course_lib.engine FOLDER`` is one rank that was not forked."""

import sys

if __name__ == "__main__":
    sys.modules["debugpy"] = None  # ipykernel would import it, for a second of each start
    from course_lib.engine import application

    folder, sys.argv = sys.argv[1], ["course_lib.engine"]
    application.serve(application.prepare(folder))
