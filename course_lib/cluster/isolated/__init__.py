"""Isolated ranks, as grading runs them: each in a sandbox with one connection, to a broker in the notebook's own process.

`ranks` has their processes; `broker` passes frames on; `coordinator` does what MPI would do, and counts.
"""
