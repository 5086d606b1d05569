"""Sandbox for untrusted code: namespaces, file access, system calls, control groups, and measurement of resource usage."""
