"""Checks of a layer's forward and backward pass on a grid of ranks (parts 03 to 07)."""
