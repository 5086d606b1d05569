"""Source code of cells and functions: the meaning of a cell, shipping functions, cells to rerun, hints about misplaced names."""
