"""Sources of the parts: building the notebooks, reference answers, and the student archive."""
