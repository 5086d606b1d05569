"""Part 33: instruments that find silent bugs, put to the test with faults drawn by chance.

``check`` compares answers in the kernel, ``faults`` draws what goes wrong, ``on_ranks`` runs there.
"""
