"""Library of the course's notebooks: each module covers one idea."""

from course_lib import former_names

former_names.install()
