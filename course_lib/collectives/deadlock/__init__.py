"""Find ranks that wait for one that can no longer come.

`board` says what each rank does, `hosts` asks other machines for that, and `detector` decides.
"""
