"""Carry out the kernel's requests on a rank: run code, capture its output, describe its errors."""
