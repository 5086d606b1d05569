"""Limits of part 11's hidden tests, and the kinds of cases that do not apply to its exercises."""

from course_lib.check.limits import Limit

BOOKKEEPING = 1000  # bytes for sizes and the like, besides the matrices
BYTES = {
    "par_matmul_by_row": Limit(
        "par_matmul_by_row",
        "Rank 0 sends B and three quarters of A, the others B at most once, and their parts of C; {:,} bytes may come on top.",
        BOOKKEEPING,
    ),
    "par_matmul_by_reduction": Limit(
        "par_matmul_by_reduction",
        "A rank sends what an all-reduce of C does, rank 0 also three quarters of A and B; {:,} bytes may come on top.",
        BOOKKEEPING,
    ),
}
WORK = {
    "par_matmul_by_row": Limit("par_matmul_by_row", "A rank multiplies its rows of A by B."),
    "par_matmul_by_reduction": Limit("par_matmul_by_reduction", "Each rank multiplies its parts; the sum is over all ranks."),
}

ALL_RANKS = "it has no communicator among its arguments: its ranks are always the same four"
_COMMON = {
    "dtypes": "the docstring says float64",
    "calls": "collectives and messages may be as many as an answer needs; their bytes are counted",
    **{kind: ALL_RANKS for kind in ("group order", "group sizes", "many ranks", "same ranks twice")},
}
NOT_DRAWN = {"par_matmul_by_row": _COMMON, "par_matmul_by_reduction": _COMMON}
