"""nbgrader's configuration in a student's server: fetch and submit."""

c = get_config()  # noqa: F821  nbgrader defines it
c.Exchange.root = "/exchange"  # as seen inside the sandbox
c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__"]
c.ExchangeFactory.fetch_assignment = "course_lib.tools.fetch_assignment.FetchAssignmentAsLink"
