"""Benchmarks of `make bench`; each figure compares two measurements from the same run."""
