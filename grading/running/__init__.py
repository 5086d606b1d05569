"""A run of grading: what waits, the workers, the processes and their limits, the gradebook."""
