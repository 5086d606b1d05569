"""GPT training on a grid of ranks: the trainer, its full state, its costs, and the run directory."""
