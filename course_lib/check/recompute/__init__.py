"""Checks of recomputation (part 32): the autograd function, and which layers to recompute."""
