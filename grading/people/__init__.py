"""The students of a class: the roster, and what it grants."""
