"""The course's web site, and README's pictures; see `build` and `pictures`."""
