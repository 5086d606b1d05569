"""Example models and clusters for part 29's `plan`, by the choice that matters most in each.

They resemble those of the hidden tests, in `grading.authoring.cases.plan`; memorized answers to these do not help there.
"""

from __future__ import annotations

# Number of devices, device type, GiB of each, slowdown of the network relative to its data sheet; layers, heads (of 128), positions,
# vocabulary, texts; whether gated, fused, and with dropout.
Case = tuple[int, str, float, int, int, int, int, int, int, int, int, int]
Cases = dict[str, dict[str, tuple[Case, ...]]]  # by size, and by the choice that matters
MEMORY_BOUND = "memory"  # almost nothing fits: nothing without recomputation, nor with an unsharded optimizer
EXAMPLES: Cases = {
    "small": {
        MEMORY_BOUND: ((24, "a100", 28, 2, 32, 40, 4096, 51200, 24, 1, 0, 1),),
        "few axes": ((8, "h100", 80, 1, 48, 8, 2048, 51200, 128, 1, 1, 0),),  # neither tensor nor pipeline parallel
        "interleave": ((24, "h100", 24, 4, 60, 24, 1024, 51200, 24, 1, 0, 0),),
        "positions": ((16, "a100", 24, 4, 36, 40, 4096, 51200, 48, 0, 0, 1),),  # of tensor parallel ranks, which may split them
        "micro-batches": ((8, "a100", 40, 2, 48, 16, 1024, 128256, 135, 1, 1, 0),),  # not a power of two
    },
    "large": {
        MEMORY_BOUND: ((96, "a100", 29, 4, 40, 80, 4096, 128256, 96, 0, 0, 1),),
        "interleave": ((64, "h100", 40, 4, 60, 64, 1024, 128256, 128, 0, 0, 0),),
        "positions": ((96, "h100", 24, 1, 48, 64, 2048, 51200, 384, 1, 0, 1),),
        "micro-batches": ((64, "h100", 24, 4, 64, 40, 1024, 51200, 315, 1, 0, 0),),
    },
}
