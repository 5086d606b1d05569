"""Checks of the grid of ranks: who holds which samples, and who is in which group (parts 01 and 02)."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(__name__, ProcessGroupsCheck="process_groups", SplitDataCheck="split_data")
