"""Language models on clusters: what a training step of theirs takes, in seconds and in bytes.

The simulator of parts 16 to 20 counts one matrix as a layer, and runs any loop. Here the layer is the transformer's, the loop is that of
Megatron-LM (tensor, sequence, pipeline and data parallel), and the result is held to what others have measured: see `reference_data`.
"""
