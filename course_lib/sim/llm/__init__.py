"""Simulation of language model training on clusters: seconds and bytes of a step.

The simulator of parts 16 to 20 models a layer as a single matrix, and runs any loop. Here the layer is a transformer's, the loop is that
of Megatron-LM (tensor, sequence, pipeline and data parallel), and results are compared with published measurements: see `reference_data`.
"""
