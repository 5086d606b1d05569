"""Isolated ranks, for grading: each in a sandbox, with a single connection to a broker in the notebook's kernel.

`ranks` manages the processes, which `launcher` starts; `broker` reads and writes frames, and specifies the protocol. It passes calls to
`collectives.coordination`, which does what MPI would do, and counts traffic.
"""
