"""Serving with part 34's solution: decode against PyTorch, continuous against static batching."""
