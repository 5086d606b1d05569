"""Decode 8 texts of 128 tokens on 2 ranks, with part 34's solution, against PyTorch with 2 threads; float32, width 512, 4 blocks.

Both have the same weights, keys and values. PyTorch's cache is one contiguous array, as all texts have the same length. At least 0.5 of its
tokens a second means at most twice its seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import mpi
from benchmarks.turns import turns
from course_lib.ddp import pytorch
from course_lib.gpt.model import Sizes
from course_lib.gpt.serving import ServingModel, Text, draw_weights

SIZES = Sizes(vocabulary=256, width=512, heads=8, depth=4, length=160)
TEXTS, TOKENS, BLOCK = 8, 128, 16
TURNS = turns(11)
STEPS = 8


def ours(functions: object, comm: object) -> Callable[[], np.ndarray]:
    """Return a step on these ranks, which computes the next tokens."""
    n, rank = comm.Get_size(), comm.Get_rank()
    model = ServingModel(SIZES, draw_weights(SIZES), n, rank)
    cache = functions.PagedCache(TEXTS * TOKENS // BLOCK, BLOCK, model.token_shape)
    texts = [Text(i, [i] * TOKENS, 1) for i in range(TEXTS)]
    kept = _kept()
    for i in range(TEXTS):
        cache.allocate(i, TOKENS)
        cache.data[:, :, cache.slots(i)] = np.split(kept[:, :, i], n, axis=3)[rank]
    return lambda: functions.next_token(functions.decode(model, texts, cache, comm), comm)


def theirs() -> Callable[[], np.ndarray]:
    """Return the same step in PyTorch."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(2)
    w = {name: torch.from_numpy(array) for name, array in draw_weights(SIZES).items()}
    w |= {name: array.T.contiguous() for name, array in w.items() if array.ndim == 2 and not name.startswith("0.")}
    keys, values = torch.from_numpy(_kept()).permute(1, 0, 2, 4, 3, 5).contiguous()  # (layers, texts, heads, tokens, size)
    tokens, last = torch.arange(TEXTS), SIZES.depth + 1

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (SIZES.width,), w[f"{name}.weight"], w[f"{name}.bias"])

    @torch.inference_mode()
    def step() -> np.ndarray:
        x = w["0.words.weight"][tokens] + w["0.places"][TOKENS - 1]
        for i in range(1, last):
            qkv = functional.linear(norm(x, f"{i}.norm1"), w[f"{i}.qkv.weight"]).view(TEXTS, SIZES.heads, 3, -1)
            keys[i - 1, :, :, -1], values[i - 1, :, :, -1] = qkv[:, :, 1], qkv[:, :, 2]
            seen = functional.scaled_dot_product_attention(qkv[:, :, :1], keys[i - 1], values[i - 1])
            x = x + functional.linear(seen.reshape(TEXTS, -1), w[f"{i}.out.weight"])
            up = functional.linear(norm(x, f"{i}.norm2"), w[f"{i}.up.weight"])
            x = x + functional.linear(functional.gelu(up, approximate="tanh"), w[f"{i}.down.weight"])
        return functional.linear(norm(x, f"{last}.norm"), w[f"{last}.words.weight"]).argmax(dim=1).numpy()

    return step


def _kept() -> np.ndarray:
    """Keys and values of all texts, ``(layers, 2, texts, tokens, heads, size)``."""
    shape = SIZES.depth, 2, TEXTS, TOKENS, SIZES.heads, SIZES.width // SIZES.heads
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def measure(folder: str) -> None:
    """Time both on two ranks, turn by turn; rank 0 prints the ratios. PyTorch runs on rank 0, while rank 1 sleeps in a barrier."""
    from course_lib import students
    from course_lib.collectives import Communicator

    comm = Communicator()
    first, step = comm.Get_rank() == 0, ours(students.load(folder), comm)
    other = theirs() if first else None
    found = step()
    assert other is None or np.array_equal(found, other())

    def seconds(call: Callable | None) -> float:
        comm.Barrier()
        time.sleep(0.1)  # the other rank's wait is over its first phase, in which it keeps its core busy
        began = time.perf_counter()
        for _ in range(STEPS if call else 0):
            call()
        took = time.perf_counter() - began
        comm.Barrier()
        return took

    seconds(step), seconds(other)
    ratios = [seconds(step) / max(seconds(other), 1e-9) for _ in range(TURNS)]
    if first:
        print(json.dumps(ratios))


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    if not pytorch.available():
        print("Decode against PyTorch was left out: torch is not installed (pip install -e '.[torch]').", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        reference.write(folder)
        yield "decode-8-texts-2-ranks/torch-2-threads", mpi.run(2, __name__, folder), 2.0


if __name__ == "__main__":
    measure(sys.argv[1])
