"""The training of a GPT on a grid of ranks: the trainer, its full state, its costs, and the folder of a run."""
