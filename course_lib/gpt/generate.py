"""Text generation with a trained GPT."""

from __future__ import annotations

import numpy as np

from course_lib.autograd import no_grad
from course_lib.gpt.training import full_state
from course_lib.gpt.training.trainer import Trainer


def generate(trainer: Trainer, prompt: str = "def ", count: int = 200, temperature: float = 0.8, seed: int = 0) -> str:
    """Continue a text, byte by byte. Collective: the whole model is gathered, and rank 0 generates.

    Parameters
    ----------
    trainer : Trainer
    prompt : str
    count : int
        Number of bytes to generate.
    temperature : float
        Divides the logits; near 0, the most probable byte is always chosen.
    seed : int
        Seed of the sampling.

    Returns
    -------
    str
        The prompt and its continuation, with a replacement character for invalid bytes; empty on all ranks but 0.
    """
    one = full_state.single_rank_trainer(trainer)
    full_state.copy_parameters(trainer, one)
    if trainer.groups.everyone.Get_rank() > 0:
        return ""
    tokens, random = list(prompt.encode(errors="surrogateescape") or b"\n"), np.random.default_rng(seed)
    with no_grad():
        for _ in range(count):
            logits = one.model(np.array([tokens[-trainer.settings.length :]])).data[0, -1].astype(np.float64) / temperature
            chances = np.exp(logits - logits.max())
            tokens.append(int(random.choice(len(chances), p=chances / chances.sum())))
    text = bytes(tokens).decode(errors="replace")
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
