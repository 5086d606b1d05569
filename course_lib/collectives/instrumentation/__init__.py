"""What watches the communicator's calls without changing them: traces, and hints on a wrong group."""
