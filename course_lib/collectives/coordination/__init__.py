"""Do in one process what MPI does for its ranks: match messages, carry out collectives in NumPy, detect deadlocks, count traffic.

`coordinator` uses the other modules. The broker of isolated ranks (`cluster.isolated`) passes it the frames that it receives, and
`check.cases.virtual_group` those of ranks that share a process.
"""
