"""Grading runs: pending submissions, workers, processes with limits, and the gradebook."""
