"""Utilities without a topic of their own: numbers in words, progress bars, this machine, signals."""
