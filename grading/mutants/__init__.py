"""Mutants: solutions that are changed in one place, to measure what the hidden tests notice."""
