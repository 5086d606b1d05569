"""A GPT of 2 million parameters, 128 positions, 16 texts per step: a step on 1 rank against PyTorch, one thread; and 2 ranks against 1.

Both with Adam and clipping, in float32. Data parallel ranks have half of the texts each. At least 0.5 of PyTorch's tokens per second means
at most twice its seconds; 1.6 times one rank's tokens per second means at most 0.625 of its seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import mpi
from benchmarks.training.autograd import in_turns
from benchmarks.training.transformer import torch_block
from benchmarks.turns import turns
from course_lib import memory
from course_lib.ddp import pytorch
from course_lib.gpt.settings import Settings
from course_lib.gpt.text import load_text, sample_batch
from course_lib.gpt.training.trainer import Trainer

MODEL = dict(width=200, heads=5, depth=4, length=128, batch=16)
TURNS = turns(11)


def torch_step(text: np.ndarray) -> Callable[[], object]:
    """Return the same step in PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)
    s = Settings(**MODEL)

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(256, s.width), nn.Parameter(0.02 * torch.randn(s.length, s.width))
            self.blocks = nn.Sequential(*(torch_block(s.width, s.heads) for _ in range(s.depth)))
            self.norm, self.head = nn.LayerNorm(s.width), nn.Linear(s.width, 256, bias=False)

        def forward(self, tokens):
            return self.head(self.norm(self.blocks(self.words(tokens) + self.places)))

    model = GPT()
    optimizer, done = torch.optim.Adam(model.parameters(), s.lr), [0]

    def step() -> None:
        tokens, labels = (torch.from_numpy(a.copy()) for a in sample_batch(text, done[0], s.batch, s.length, s.seed))
        done[0] += 1
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens).reshape(-1, 256), labels.reshape(-1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        optimizer.step()

    return step


def alone() -> None:
    """Time ours and PyTorch's in turn, on one rank."""
    from threadpoolctl import threadpool_limits

    from course_lib.collectives import Communicator

    text, _ = load_text()
    memory.keep_freed()
    with threadpool_limits(1):
        steps = {"ours": Trainer(Settings(**MODEL), None, Communicator(), text).train_step, "torch": torch_step(text)}
        print(json.dumps(in_turns(steps, TURNS, 1)))


def both() -> None:
    """Time a step of rank 0 alone and one of both, in turn, on two ranks."""
    from course_lib.collectives import Communicator

    comm, (text, _) = Communicator(), load_text()
    memory.keep_freed()
    own = comm.Split(color=comm.Get_rank())
    one, two = Trainer(Settings(**MODEL), None, own, text), Trainer(Settings(dp=2, **MODEL), None, comm, text)
    found = []
    for _ in range(TURNS + 2):
        single = mpi.seconds(lambda: one.train_step() if comm.Get_rank() == 0 else None)
        found.append(mpi.seconds(two.train_step) / single)
    if comm.Get_rank() == 0:
        print(json.dumps(found[2:]))


def figures() -> Iterator[tuple[str, list[float], float]]:
    if pytorch.available():
        taken = mpi.run(1, __name__, "alone")
        yield "gpt-step-1-rank/torch", [a / b for a, b in zip(taken["ours"], taken["torch"], strict=True)], 1.05
    else:
        print("bench: PyTorch's GPT was left out: torch is not installed (pip install -e '.[torch]').", file=sys.stderr)
    yield "gpt-step-2-ranks/1", mpi.run(2, __name__, "both"), 0.625


if __name__ == "__main__":
    alone() if sys.argv[1] == "alone" else both()
