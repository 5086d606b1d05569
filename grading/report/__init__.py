"""`make report PART=...`: the results of a class in a part, as one page and three tables."""
