"""A training step of a transformer block: on 2 ranks against 1, and on 1 against PyTorch, one thread each.

Width 256, 8 heads, 8 x 128 tokens, float32, with the SGD step; the operators are those of part 21's solution.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import mpi
from benchmarks.training.autograd import in_turns
from benchmarks.turns import turns
from course_lib.autograd import SGD, Tensor
from course_lib.ddp import pytorch

WIDTH, HEADS, POSITIONS, BATCH, LR = 256, 8, 128, 8, 0.01
TURNS = turns(15)
STEPS = 5

Step = Callable[[], object]


def step_of(block) -> Step:
    """Return a training step of our block."""
    x, optimizer = (
        Tensor(np.random.default_rng(1).standard_normal((BATCH, POSITIONS, WIDTH)).astype(np.float32)),
        SGD(block.parameters(), LR),
    )

    def step() -> None:
        optimizer.zero_grad()
        out = block(x)
        (out * out).sum().backward(np.float32(1e-6))
        optimizer.step()

    return step


def torch_block(width: int, heads: int) -> object:
    """Return the block of `course_lib.gpt.model.block` in PyTorch."""
    from torch import nn
    from torch.nn import functional

    class TorchBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    return TorchBlock()


def torch_step() -> Step:
    """Return the same step in PyTorch."""
    import torch

    torch.set_num_threads(1)
    block = torch_block(WIDTH, HEADS)
    x, optimizer = torch.randn(BATCH, POSITIONS, WIDTH), torch.optim.SGD(block.parameters(), LR)

    def step() -> None:
        optimizer.zero_grad()
        (1e-6 * (block(x) ** 2).sum()).backward()
        optimizer.step()

    return step


def measure(folder: str) -> None:
    """Time the split block and the whole one on two ranks, turn by turn; rank 0 prints the ratios."""
    from course_lib import students
    from course_lib.collectives import Communicator
    from course_lib.gpt.model.block import Block

    comm, functions = Communicator(), students.load(folder)
    split = step_of(
        Block(
            WIDTH,
            HEADS,
            np.random.default_rng(0),
            comm,
            students.get(functions, "copy_to_group"),
            students.get(functions, "reduce_from_group"),
        )
    )
    whole, first = step_of(Block(WIDTH, HEADS, np.random.default_rng(0))), comm.Get_rank() == 0

    def seconds(step: Step, here: bool = True) -> float:
        return mpi.seconds(lambda: [step() for _ in range(STEPS if here else 0)])

    for _ in range(2):
        seconds(split), seconds(whole, first)
    ratios = [seconds(split) / seconds(whole, first) for _ in range(TURNS)]
    if first:
        print(json.dumps(ratios))


def beside_torch() -> None:
    """Time ours against PyTorch on one rank."""
    from course_lib.gpt.model.block import Block

    taken = in_turns({"ours": step_of(Block(WIDTH, HEADS, np.random.default_rng(0))), "torch": torch_step()}, TURNS, STEPS)
    print(json.dumps([a / b for a, b in zip(taken["ours"], taken["torch"], strict=True)]))


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    with tempfile.TemporaryDirectory() as folder:
        reference.write(folder)
        yield "tensor-parallel-block-2-ranks/1", mpi.run(2, __name__, folder), 0.75
    if not pytorch.available():
        print("The block against PyTorch was left out: torch is not installed (pip install -e '.[torch]').", file=sys.stderr)
        return
    yield "block-1-rank/torch", mpi.run(1, __name__, "torch"), 1.15


if __name__ == "__main__":
    beside_torch() if sys.argv[1:] == ["torch"] else measure(sys.argv[1])
