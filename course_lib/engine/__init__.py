"""Processes that run beside the notebook: a rank, the zygote, the controller. Imports nothing, so that each loads only its own."""
