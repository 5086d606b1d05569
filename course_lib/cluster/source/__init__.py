"""Source code of cells and functions: what goes to the ranks, what runs there again, and names that are in the wrong place."""
