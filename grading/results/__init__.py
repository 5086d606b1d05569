"""Results for students and platforms: grades, feedback pages, and zips of these."""
