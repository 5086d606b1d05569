"""Benchmarks of the simulator and of the search for a plan."""
