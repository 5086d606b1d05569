"""The web site of the course, and README's pictures; see `build`, `pictures` and `session`."""
