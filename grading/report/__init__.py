"""`make report PART=...`: what a class did in a part, as one page and three tables."""
