"""Autograders for Gradescope and Autolab, which grade one submission at a time.

`make` writes the platform's archive: the course library, the hidden tests of one part, and the wheels that they need. `__main__` is the
program that runs there.
"""
