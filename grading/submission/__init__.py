"""One hand-in: what is taken of it, how it runs, what its tests say, which of its lines to look at."""
