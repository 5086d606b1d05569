"""Benchmarks of starting ranks, of idle ranks, and of whole notebooks."""
