"""Checks of part 36: the Newton-Schulz iteration, who owns which matrix, and Muon over ranks."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(__name__, IterationCheck="iteration", MuonCheck="step", OwnersCheck="owners", loads="owners")
