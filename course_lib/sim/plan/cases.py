"""Models and clusters for part 29's test, by what makes the difference: who leaves it out loses, whichever is drawn.

`tests/test_plan_cases.py` says what holds for each.
"""

from __future__ import annotations

# Devices, their kind, GiB of each, how many times slower the network is than it is sold; layers, heads (of 128), positions, words,
# texts; whether gated, fused, and with dropout.
Case = tuple[int, str, float, int, int, int, int, int, int, int, int, int]
MEMORY = "memory"  # little fits, and nothing without recomputation, nor with an optimizer that is not sharded
CASES: dict[str, dict[str, tuple[Case, ...]]] = {
    "small": {
        MEMORY: (
            (24, "a100", 81, 4, 64, 64, 4096, 32000, 24, 0, 0, 0),
            (24, "a100", 104, 1, 64, 64, 4096, 51200, 24, 0, 0, 1),
            (24, "a100", 28, 2, 32, 40, 4096, 51200, 24, 1, 0, 1),
        ),
        "interleave": (
            (24, "h100", 80, 1, 60, 64, 2048, 51200, 24, 0, 0, 1),
            (24, "h100", 24, 4, 60, 24, 1024, 51200, 24, 1, 0, 0),
            (32, "h100", 40, 2, 64, 40, 4096, 128256, 32, 0, 0, 0),
            (16, "a100", 24, 2, 24, 40, 1024, 128256, 16, 0, 0, 0),
        ),
        "positions": (  # of tensor parallel ranks, which share them or not
            (32, "h100", 24, 1, 60, 32, 2048, 51200, 64, 1, 1, 1),
            (16, "a100", 24, 4, 36, 40, 4096, 128256, 48, 0, 0, 1),
        ),
        "micro-batches": (  # of no power of two
            (16, "h100", 40, 2, 36, 24, 1024, 128256, 135, 0, 0, 0),
            (32, "h100", 24, 2, 24, 32, 1024, 51200, 315, 0, 0, 0),
            (8, "a100", 40, 2, 48, 16, 1024, 128256, 135, 1, 1, 0),
            (8, "h100", 40, 4, 60, 16, 1024, 128256, 315, 1, 1, 0),
            (8, "a100", 80, 4, 60, 32, 1024, 51200, 315, 1, 1, 0),
            (16, "a100", 40, 4, 60, 24, 1024, 32000, 315, 1, 0, 1),
            (8, "h100", 40, 1, 60, 16, 1024, 51200, 315, 0, 0, 1),
        ),
    },
    "large": {
        MEMORY: (
            (96, "a100", 29, 4, 40, 80, 4096, 128256, 96, 0, 0, 1),
            (64, "a100", 52, 2, 60, 80, 4096, 32000, 128, 1, 0, 1),
        ),
        "interleave": (
            (128, "a100", 24, 2, 24, 80, 2048, 51200, 128, 1, 1, 1),
            (64, "h100", 40, 4, 60, 64, 1024, 128256, 128, 0, 0, 0),
        ),
        "positions": (
            (128, "h100", 80, 2, 64, 96, 4096, 128256, 256, 1, 0, 0),
            (96, "h100", 24, 1, 48, 64, 2048, 51200, 384, 1, 0, 1),
        ),
        "micro-batches": (
            (64, "h100", 40, 1, 64, 32, 1024, 128256, 225, 1, 0, 1),
            (64, "h100", 24, 4, 64, 40, 1024, 51200, 315, 1, 0, 0),
        ),
    },
}
