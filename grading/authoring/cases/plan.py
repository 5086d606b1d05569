"""Models and clusters of part 29's hidden tests, by the effect that decides: ignoring it loses points, whichever case is drawn.

Students do not get this file. Answers stored for the students' cases, in `course_lib.sim.plan.cases`, do not fit these;
`tests/grading/authoring/test_plan_cases.py` says what holds for each.
"""

from __future__ import annotations

from course_lib.sim.plan.cases import MEMORY_BOUND, Cases

CASES: Cases = {
    "small": {
        MEMORY_BOUND: (
            (32, "a100", 18, 4, 32, 64, 4096, 51200, 32, 0, 1, 1),  # fused: only full recomputation saves memory
            (16, "a100", 26, 2, 64, 40, 4096, 51200, 16, 0, 1, 1),
        ),
        "few axes": (
            (16, "h100", 80, 1, 48, 8, 2048, 51200, 256, 1, 1, 0),
            (16, "h100", 40, 1, 60, 8, 2048, 51200, 128, 0, 1, 1),
        ),
        "interleave": (
            (24, "h100", 80, 1, 60, 64, 2048, 51200, 24, 0, 0, 1),
            (24, "h100", 80, 1, 60, 64, 2048, 32000, 24, 1, 0, 1),
            (32, "h100", 40, 2, 64, 40, 4096, 128256, 32, 0, 0, 0),
            (32, "h100", 40, 2, 64, 32, 2048, 128256, 32, 0, 0, 0),
            (16, "a100", 24, 2, 24, 40, 1024, 128256, 16, 0, 0, 0),
        ),
        "positions": (
            (32, "h100", 24, 1, 60, 32, 2048, 51200, 64, 1, 1, 1),
            (32, "h100", 24, 1, 60, 32, 2048, 51200, 64, 0, 1, 1),
            (32, "h100", 24, 1, 60, 32, 4096, 51200, 64, 1, 1, 1),
        ),
        "micro-batches": (
            (16, "h100", 40, 2, 36, 24, 1024, 128256, 135, 0, 0, 0),
            (32, "h100", 24, 2, 24, 32, 1024, 51200, 315, 0, 0, 0),
            (16, "a100", 40, 4, 60, 24, 1024, 32000, 315, 1, 0, 1),
        ),
    },
    "large": {
        MEMORY_BOUND: (
            (64, "a100", 52, 2, 60, 80, 4096, 32000, 128, 1, 0, 1),
            (64, "a100", 52, 2, 72, 80, 4096, 32000, 128, 1, 0, 1),
        ),
        "interleave": ((128, "a100", 24, 2, 24, 80, 2048, 51200, 128, 1, 1, 1),),
        "positions": (
            (128, "h100", 80, 2, 64, 96, 4096, 128256, 256, 1, 0, 0),
            (128, "h100", 80, 1, 64, 96, 4096, 128256, 256, 1, 0, 0),
            (128, "h100", 80, 2, 64, 96, 4096, 128256, 256, 1, 0, 1),
        ),
        "micro-batches": (
            (96, "h100", 24, 1, 64, 32, 1024, 128256, 315, 1, 0, 1),
            (96, "h100", 40, 1, 36, 16, 1024, 128256, 270, 1, 1, 1),
        ),
    },
}
