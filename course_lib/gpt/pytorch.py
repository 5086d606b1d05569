"""PyTorch's own tensor parallelism and FSDP2 on the course's ranks, with the model of parts 21 to 28, for comparison.

PyTorch is optional: it is imported only where it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import numpy as np

from course_lib.autograd import Module
from course_lib.ddp.pytorch import INSTALL_HINT, available, process_group
from course_lib.gpt.model import Block

__all__ = ["INSTALL_HINT", "available", "beside_tensor_parallel", "tensor_parallel_block", "train_fully_sharded"]


def tensor_parallel_block(x: np.ndarray, grad: np.ndarray, comm: object, heads: int, seed: int) -> dict[str, np.ndarray]:
    """Run a block forward and backward with `parallelize_module`; collective.

    Parameters
    ----------
    x, grad : numpy.ndarray
        ``(batch, positions, width)``: the input, and the gradient of the output, the same on all ranks.
    comm : Communicator
    heads, seed : int
        As for `Block`, whose weights it gets.

    Returns
    -------
    dict of str to numpy.ndarray
        "output", "its input's gradient", and by name the gradients of this rank's parameters, in the same form as the course's.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    whole = Block(x.shape[-1], heads, np.random.default_rng(seed), dtype=x.dtype)
    with process_group(comm):
        block = _torch_modules().Block(whole)
        plan = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, init_device_mesh("cpu", (comm.Get_size(),)), plan)
        block.heads = heads // comm.Get_size()
        given = torch.tensor(x, requires_grad=True)
        out = block(given)
        out.backward(torch.tensor(grad))
        grads = {name: _local(p.grad).numpy().T for name, p in block.named_parameters()}
        return {"output": out.detach().numpy(), "its input's gradient": given.grad.numpy(), **grads}


def beside_tensor_parallel(ours: Mapping[str, np.ndarray], x: np.ndarray, grad: np.ndarray, comm: object, **settings) -> str:
    """Say how far the arrays of `tensor_parallel_block` are from ours, by name, or how to install PyTorch; collective."""
    if not available():
        return INSTALL_HINT
    theirs = tensor_parallel_block(x, grad, comm, **settings)
    apart = max(float(np.abs(array - theirs[name]).max()) for name, array in ours.items())
    return f"the largest difference in {len(ours)} arrays is {apart:.1e}"


def train_fully_sharded(layers: Callable[[], list[Module]], comm: object, tokens: np.ndarray, steps: int = 6) -> dict:
    """Train a GPT with Adam and `fully_shard` (FSDP2), as `fsdp.profile.train` does with the student's wrapper; collective.

    Parameters
    ----------
    layers : callable
        Makes the model's layers, the same on all ranks.
    comm : Communicator
    tokens : numpy.ndarray
        int ``(batch, positions)``, of this rank.
    steps : int

    Returns
    -------
    dict
        "losses" of this rank; "kept", the bytes of its shards of parameters, gradients and Adam's moments.
    """
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    kinds, losses = _torch_modules(), []
    given, labels = torch.tensor(tokens), torch.tensor(np.roll(tokens, -1, axis=1).reshape(-1))
    with process_group(comm):
        mesh = init_device_mesh("cpu", (comm.Get_size(),))
        model = nn.Sequential(*(getattr(kinds, type(layer).__name__)(layer) for layer in layers()))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(given).flatten(0, 1), labels)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
        moments = [value for state in optimizer.state.values() for name, value in state.items() if name.startswith("exp_avg")]
        arrays = [*model.parameters(), *(p.grad for p in model.parameters()), *moments]
        return dict(losses=losses, kept=sum(_local(array).nbytes for array in arrays))


def _local(tensor):
    """This rank's part of a DTensor, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _torch_modules() -> SimpleNamespace:
    """The layers of `gpt.model` as PyTorch modules, each made from one of the course's, with its weights."""
    import torch
    from torch import nn
    from torch.nn.functional import gelu, scaled_dot_product_attention

    def linear(layer: Module) -> nn.Linear:
        made = nn.Linear(*layer.weight.shape, bias=False)
        made.weight = nn.Parameter(torch.tensor(layer.weight.data.T.copy()))
        return made

    def norm(layer: Module) -> nn.LayerNorm:
        made = nn.LayerNorm(layer.weight.shape[0], eps=layer.eps)
        made.weight, made.bias = (nn.Parameter(torch.tensor(p.data)) for p in (layer.weight, layer.bias))
        return made

    class TorchBlock(nn.Module):
        def __init__(self, block: Block):
            super().__init__()
            self.heads, self.norm1, self.norm2 = block.heads, norm(block.norm1), norm(block.norm2)
            self.qkv, self.out, self.up, self.down = (linear(layer) for layer in (block.qkv, block.out, block.up, block.down))

        def forward(self, x):
            batch, positions, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).reshape(batch, positions, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
            seen = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(batch, positions, -1))
            return x + self.down(gelu(self.up(self.norm2(x)), approximate="tanh"))

    class TorchEmbed(nn.Module):
        def __init__(self, embed: Module):
            super().__init__()
            self.words, self.places = (nn.Parameter(torch.tensor(p.data)) for p in (embed.words.weight, embed.places))

        def forward(self, tokens):
            return self.words[tokens] + self.places[: tokens.shape[1]]

    class TorchHead(nn.Module):
        def __init__(self, head: Module):
            super().__init__()
            self.norm, self.words = norm(head.norm), linear(head.words)

        def forward(self, x):
            return self.words(self.norm(x))

    return SimpleNamespace(Block=TorchBlock, Embed=TorchEmbed, Head=TorchHead)
