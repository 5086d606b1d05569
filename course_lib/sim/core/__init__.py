"""The simulated devices: what a training loop can do on a rank, what it costs, and what is not allowed."""
