"""Start ranks and end them: mpiexec, the zygote and its supervisor, the controller, Slurm. Each loads only its own."""
