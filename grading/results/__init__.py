"""What students and platforms get: marks, pages, and their zips."""
