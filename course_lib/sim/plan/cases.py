"""Models and clusters to try part 29's `plan` on, by what makes the difference: who leaves it out loses.

They are like those of the hidden tests, which stand in `grading.authoring.plan_cases`: answers stored for these are none for those.
"""

from __future__ import annotations

# Devices, their kind, GiB of each, how many times slower the network is than it is sold; layers, heads (of 128), positions, words,
# texts; whether gated, fused, and with dropout.
Case = tuple[int, str, float, int, int, int, int, int, int, int, int, int]
Cases = dict[str, dict[str, tuple[Case, ...]]]  # by size, and by what makes the difference
MEMORY_BOUND = "memory"  # little fits, and nothing without recomputation, nor with an optimizer that is not sharded
EXAMPLES: Cases = {
    "small": {
        MEMORY_BOUND: ((24, "a100", 28, 2, 32, 40, 4096, 51200, 24, 1, 0, 1),),
        "interleave": ((24, "h100", 24, 4, 60, 24, 1024, 51200, 24, 1, 0, 0),),
        "positions": ((16, "a100", 24, 4, 36, 40, 4096, 128256, 48, 0, 0, 1),),  # of tensor parallel ranks, which share them or not
        "micro-batches": ((8, "a100", 40, 2, 48, 16, 1024, 128256, 135, 1, 1, 0),),  # of no power of two
    },
    "large": {
        MEMORY_BOUND: ((96, "a100", 29, 4, 40, 80, 4096, 128256, 96, 0, 0, 1),),
        "interleave": ((64, "h100", 40, 4, 60, 64, 1024, 128256, 128, 0, 0, 0),),
        "positions": ((96, "h100", 24, 1, 48, 64, 2048, 51200, 384, 1, 0, 1),),
        "micro-batches": ((64, "h100", 24, 4, 64, 40, 1024, 51200, 315, 1, 0, 0),),
    },
}
