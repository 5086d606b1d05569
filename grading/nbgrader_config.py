"""nbgrader's configuration, read by `make` and by nbgrader's own commands, such as `cd grading && ../.venv/bin/nbgrader db`."""

from pathlib import Path

from grading.config import configure

c = get_config()  # noqa: F821  nbgrader defines it
configure(c, Path(__file__).resolve().parent)

# Your own lines follow; grading/README.md says more. For instance:
#
# c.CourseDirectory.course_id = "dt-2027"
# c.CourseDirectory.db_url = "postgresql+psycopg://grader:PASSWORD@127.0.0.1/gradebook"
# c.LateSubmissionPlugin.penalty_method = "zero"  # or a plugin of your own: c.AssignLatePenalties.plugin_class = "my_course.Penalty"
# c.Exchange.root = "/srv/nbgrader/exchange"
