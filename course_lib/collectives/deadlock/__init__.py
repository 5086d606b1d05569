"""Deadlock detection: find ranks that wait for one that can no longer make the matching call.

`board` holds the state of each rank, `host_agents` fetches it from other machines (where `agent` serves it), and `detector` decides.
"""
