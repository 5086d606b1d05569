"""Carry out a request of the kernel on a rank: run it, collect its output, describe its errors."""
