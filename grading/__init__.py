"""The instructor's side: build, release, grade, give feedback. course_lib never imports it."""
