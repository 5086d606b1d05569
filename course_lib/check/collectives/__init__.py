"""Checks of the student's own collectives (part 30)."""
