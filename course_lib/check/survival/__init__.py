"""Checks of training that goes on without silent ranks (part 37)."""
