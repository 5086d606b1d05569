"""Observers of the communicator's calls, which do not change them: traces, and hints on a wrong group."""
