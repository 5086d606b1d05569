"""Calls of the relay that have been made and not answered, and the steps that wait for their answers."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.collectives import apart, errors, explain
from course_lib.collectives.mailbox import Message

unanswered: set[tuple[int, int]] = set()  # calls that have not been answered
answers: dict[tuple[int, int], tuple[dict, bytes]] = {}  # those that have, and that nobody has looked at


def keep(frame: tuple[dict, bytes]) -> None:
    """Keep an answer; one to a call that was broken off is nobody's."""
    call = tuple(frame[0].get("answer", ()))
    if call in unanswered:
        unanswered.remove(call)
        answers[call] = frame


class Begun:
    """A message, or a collective that does not block, on its way through the relay; see `pending.Step`.

    Parameters
    ----------
    members : tuple of int
    call : tuple of int
        Its name.
    done : callable
        Is given this, the answer and its bytes; returns an error or None.
    what : str
        For a person.
    """

    request = None

    def __init__(self, members: tuple[int, ...], call: tuple[int, int], done: Callable[[Begun, dict, bytes], Exception | None], what: str):
        self.members, self.call, self.error, self.what, self._done = members, call, None, what, done
        self.message: Message | None = None
        self._ended = self._asked = False

    def step(self) -> bool:
        while not self._ended:
            if self.call in answers:
                answer, data = answers.pop(self.call)
                self._ended = True
                if "error" in answer:
                    self.error = getattr(errors, answer["error"])(answer["message"])
                else:
                    self.error = self._done(self, answer, data)
            elif frame := apart.line.poll():
                keep(frame)
            else:
                return False
        return True

    def test(self) -> bool:
        """Ask whether it has ended: of a large message that was sent, the relay does not say so by itself."""
        if not (self._ended or self._asked or self.call in answers):
            self._asked = True
            apart.line.send({"asks": self.call})
        return self.step()

    def wait(self) -> None:
        """Wait until it has ended."""
        if not self.step():
            apart.line.send({"wait": self.call, "place": f"{self.what} ({explain.where()})"})
            while self.call not in answers:
                keep(apart.line.receive())
            self.step()
        if self.error is not None:
            raise self.error
