"""Benchmarks of grading a class."""
