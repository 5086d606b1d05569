"""The loop of a server on all ranks: choose a batch, run it, append a token to each text."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from course_lib import students
from course_lib.gpt.serving.model import ServingModel, Text
from course_lib.trace import span

FUNCTIONS = "prefill", "decode", "next_token", "PagedCache", "Scheduler"  # of the student


class Engine:
    """A model, its cache and its scheduler on one rank; `step` is collective, and all ranks make the same calls.

    Parameters
    ----------
    model : ServingModel
    functions : object
        Has the student's `FUNCTIONS` as attributes, or under these names.
    comm : Communicator
        The tensor parallel ranks.
    blocks, block_size : int
        Size of the cache.
    most : int
        Most texts in a batch.
    scheduler : callable, optional
        Makes another scheduler, given the cache and `most`.
    """

    def __init__(
        self,
        model: ServingModel,
        functions: object | dict,
        comm: object,
        blocks: int,
        block_size: int,
        most: int,
        scheduler: Callable | None = None,
    ):
        functions = SimpleNamespace(**functions) if isinstance(functions, dict) else functions
        given = {name: students.get(functions, name) for name in FUNCTIONS if name != "Scheduler" or scheduler is None}
        self.prefill, self.decode, self.next_token = (given[name] for name in FUNCTIONS[:3])
        self.model, self.comm = model, comm
        self.cache = given["PagedCache"](blocks, block_size, model.token_shape, model.dtype)
        self.scheduler = (scheduler or given["Scheduler"])(self.cache, most)
        self.texts: dict[int, Text] = {}
        self.drawn: dict[int, tuple[float, int]] = {}  # by text: temperature and seed, where it is not the most probable token

    def add(self, text: Text, temperature: float = 0.0, seed: int = 0) -> None:
        """Take on a text; `temperature` divides the logits, and 0 always chooses the most probable token.

        Raises
        ------
        ValueError
            The text does not fit into the cache.
        """
        self.scheduler.add(text)
        self.texts[text.number] = text
        if temperature > 0:
            self.drawn[text.number] = temperature, seed

    def step(self) -> list[Text]:
        """Run a batch; return its texts, each of which has one more token. Empty if there is nothing to do."""
        prefill, decode = self.scheduler.next_batch()
        found = []
        for text in prefill:
            with span("prefill", text=text.number):
                found.append(self.prefill(self.model, text, self.cache, self.comm)[None])
        if decode:
            with span("decode", texts=len(decode)):
                found.append(self.decode(self.model, decode, self.cache, self.comm))
        texts = [*prefill, *decode]
        if texts:
            logits = self._with_noise(texts, np.concatenate(found))
            for text, token in zip(texts, self.next_token(logits, self.comm), strict=True):
                text.tokens.append(int(token))
        for number in [number for number, text in self.texts.items() if text.done]:
            del self.texts[number]
            self.drawn.pop(number, None)
        return texts

    def _with_noise(self, texts: list[Text], logits: np.ndarray) -> np.ndarray:
        """Add noise to the logits, so that the largest one is a drawn one (the Gumbel-max trick; Maddison et al., 2014, "A* sampling").

        All ranks draw the same noise for all words, so that it does not depend on their number.
        """
        columns = self.model.columns
        for i, text in enumerate(texts):
            if text.number in self.drawn:
                temperature, seed = self.drawn[text.number]
                noise = np.random.default_rng([seed, len(text.tokens)]).gumbel(size=self.model.sizes.vocabulary)
                logits[i] = logits[i] / temperature + noise[columns.start : columns.stop]
        return logits
