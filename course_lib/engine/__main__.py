"""``python -m course_lib.engine FOLDER`` is one rank that was not forked."""

import sys

if __name__ == "__main__":
    from course_lib.engine.processes import imports

    imports.leave_out("debugpy")
    from course_lib.engine import ipengine

    folder, sys.argv = sys.argv[1], ["course_lib.engine"]
    ipengine.serve(ipengine.prepare(folder))
