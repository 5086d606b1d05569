"""Limits that hidden tests set, as data: the exercise's docstring states each one, and a test compares both."""

from __future__ import annotations

from dataclasses import dataclass

# Reasons why a kind of cases is not drawn, see `cases.KINDS`.
NO_COMMUNICATOR = "it is given no communicator"
WITHOUT_COMMUNICATOR = dict.fromkeys(
    ("group order", "group sizes", "many ranks", "same ranks twice", "calls"),
    NO_COMMUNICATOR,
)


@dataclass(frozen=True)
class Limit:
    """A limit of a hidden test on bytes, calls, memory, layout, dtype or order.

    Parameters
    ----------
    exercise : str
        The function or class whose docstring, or that of one of its methods, states it.
    sentence : str
        How the docstring states it, from the sentence's beginning to its end, as a failed check
        quotes it; ``{}`` stands for the number, as in ``{:,}``.
    number : float, optional
        What the check compares with, such as bytes or calls.

    Examples
    --------
    >>> Limit("share", "A rank sends at most {:,} bytes besides its part.", 1000).text
    'A rank sends at most 1,000 bytes besides its part.'
    """

    exercise: str
    sentence: str
    number: float = 0

    @property
    def text(self) -> str:
        """The sentence, with the number, as it stands in the docstring."""
        return self.sentence.format(self.number)
