"""Seconds and bytes of the parts of a training step: layers, experts, exchanges, the stages of a pipeline, and their order."""
