"""The policy with which part 34's hidden tests compare a scheduler: continuous batching, first come, first served.

Students do not get this file. It counts blocks only, and knows no slots.
"""

from __future__ import annotations

from course_lib.check.serving.scheduler import Workload, run_policy
from course_lib.gpt.serving.model import Text


class FirstComeFirstServed:
    """Before each step, texts that are done leave, those that run take a slot, the youngest gives way, and others are admitted in order."""

    def __init__(self, blocks: int, block_size: int, most: int):
        self.blocks, self.block_size, self.most = blocks, block_size, most
        self.waiting: list[Text] = []
        self.running: list[Text] = []

    def add(self, text: Text) -> None:
        """Let a text wait."""
        self.waiting.append(text)

    def _blocks(self, texts: list[Text]) -> int:
        return sum(-(-len(text.tokens) // self.block_size) for text in texts)

    def next_batch(self) -> tuple[list[Text], list[Text]]:
        """Return the texts to prefill and those to decode."""
        self.running = [text for text in self.running if not text.done]
        self.waiting = [text for text in self.waiting if not text.done]
        while self._blocks(self.running) > self.blocks:
            self.waiting.insert(0, self.running.pop())
        decode, prefill = list(self.running), []
        while self.waiting and len(self.running) < self.most and self._blocks([*self.running, self.waiting[0]]) <= self.blocks:
            prefill.append(self.waiting[0])
            self.running.append(self.waiting.pop(0))
        return prefill, decode


def policy_seconds(workload: Workload) -> float:
    """Seconds that the policy takes for a workload, by the cost of its steps."""
    return run_policy(FirstComeFirstServed(workload.blocks, workload.block_size, workload.most), workload)
