"""Training programs: which exchanges they hide behind computation, and which operations they fuse."""

from __future__ import annotations

from dataclasses import dataclass, replace

GRADIENT_OVERLAPS = ("none", "chunk", "layer")


@dataclass(frozen=True)
class Software:
    """Habits of a training program that cost time, whatever the configuration.

    Parameters
    ----------
    name : str
    fused_accumulation : bool
        Whether a weight's gradient is added to the sum of its micro-batches within the matrix product; otherwise it is written, read
        again, and added.
    fused_norms : bool
        Whether the backward of a norm reads its arrays once; otherwise it reads them again for the gradients of its scales.
    hidden_forward, hidden_backward : float
        Fraction of tensor parallel exchanges behind matrix products: behind pieces of the same product in forward (Wang et al., 2023,
        "Overlap communication with dependent computation via decomposition"), and behind the product of the weight gradient in backward.
    gradients : str
        When the gradients of replicas begin to travel: "none" (when backward is over), "chunk" (when that of a chunk of layers is) or
        "layer" (when that of a layer is; Li et al., 2020, "PyTorch distributed").
    hidden_experts : float
        Fraction of the exchanges of experts behind other work (DeepSeek-AI, 2024, "DeepSeek-V3", section 3.2.1: all of them).
    hidden_messages : bool
        Whether a pipeline's rank computes on while it sends (Grattafiori et al., 2024, section 3.3.2).
    fused_loss : bool
        Whether the loss is computed in a single operation forward, and another one backward.
    gathered_context : bool
        Whether context parallel ranks gather all keys and values before attention, instead of passing them along a ring behind it
        (Grattafiori et al., 2024, section 3.3.2).
    one_port : bool
        Whether what replicas exchange leaves a node through the port of a single device, rather than those of all.
    """

    name: str
    fused_accumulation: bool = True
    fused_norms: bool = True
    hidden_forward: float = 0.0
    hidden_backward: float = 1.0
    gradients: str = "chunk"
    hidden_experts: float = 0.0
    hidden_messages: bool = False
    fused_loss: bool = False
    gathered_context: bool = False
    one_port: bool = False

    def __post_init__(self):
        if self.gradients not in GRADIENT_OVERLAPS:
            raise ValueError(f"gradients must be one of {', '.join(GRADIENT_OVERLAPS)}; got {self.gradients!r}.")
        for name in ("hidden_forward", "hidden_backward", "hidden_experts"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"the software's {name} is a fraction, 0 to 1; got {getattr(self, name)!r}.")


# Megatron-LM at the time of Narayanan et al., 2021, and of Korthikanti et al., 2022; the program of Grattafiori et al., 2024; and today's
# Megatron-LM, with its overlaps switched on. How much of the forward exchanges it hides is assumed.
MEGATRON_2021 = Software("megatron-2021", fused_accumulation=False, fused_norms=False, hidden_backward=0.0, gradients="none")
MEGATRON_2022 = Software("megatron-2022")
LLAMA_2024 = Software("llama-2024", gradients="layer", hidden_messages=True, gathered_context=True)
MEGATRON_CORE = Software("megatron-core", hidden_forward=0.5, gradients="layer", hidden_messages=True, fused_loss=True)
# DeepSpeed's ZeRO-3 of 2021, as Narayanan et al., 2021, table 2 shows it: at 1,536 devices, its rate is that of one port per node.
DEEPSPEED_2021 = replace(MEGATRON_2021, name="deepspeed-2021", gradients="layer", one_port=True)
SOFTWARE_PRESETS = {one.name: one for one in (MEGATRON_2021, MEGATRON_2022, LLAMA_2024, MEGATRON_CORE, DEEPSPEED_2021)}
