"""Run one rank, ``python -m course_lib.engine FOLDER``, where ranks are not forked from a zygote."""

import sys

if __name__ == "__main__":
    from course_lib.engine.processes import imports

    imports.leave_out("debugpy")
    from course_lib.engine import ipengine

    folder, sys.argv = sys.argv[1], ["course_lib.engine"]
    ipengine.serve(ipengine.prepare(folder))
