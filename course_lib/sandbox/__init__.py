"""Sandbox for untrusted code: namespaces, files, system calls, control groups, and the account of what it uses."""
