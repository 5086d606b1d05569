"""Simulated devices: the operations of a rank, their costs, and their rules."""
