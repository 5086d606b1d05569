"""The best way to train a language model on a cluster: the search, what it finds as a report, and how part 29 is checked with it.

Ranks do not have this room while they are graded: there, finding the configuration is the exercise.
"""
