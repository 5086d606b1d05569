"""Source code of cells and functions: shipping functions to the ranks, choosing cells to rerun, hints about misplaced names."""
