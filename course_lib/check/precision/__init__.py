"""Checks of sixteen-bit gathers and loss scaling (part 31)."""
