"""Processes that start and end ranks: mpiexec, the zygote and its supervisor, the controller, Slurm. Each loads only what it needs."""
