"""Processes other than the notebook's kernel: ranks, the zygote, the controller. Imports nothing, so that each loads only what it needs."""
