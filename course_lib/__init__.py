"""What every notebook of the course imports: one module, one idea."""

from course_lib import former_names

former_names.install()
