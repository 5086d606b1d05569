"""Checks and questions about a matrix product on four ranks (part 11)."""
