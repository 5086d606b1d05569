"""Grading on a platform that has an autograder of its own, Gradescope or Autolab: there, one hand-in is graded alone.

`make` writes what the platform takes: the course's library, the hidden tests of one part and the wheels that they need. `__main__` is what
runs there.
"""
