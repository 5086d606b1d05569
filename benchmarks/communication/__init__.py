"""Benchmarks of collectives and messages."""
