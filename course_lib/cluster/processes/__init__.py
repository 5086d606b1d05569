"""Processes of a cluster, as the kernel starts, watches and ends them: on this machine, or under Slurm."""
