"""Checks of part 36: the Newton-Schulz iteration, who owns which matrix, and Muon over ranks."""
