"""OpenAI's completions, as far as this server has them: what a client may ask for, and what it gets."""

from __future__ import annotations

import codecs
import time
import uuid
from dataclasses import dataclass, field

MODEL_NAME = "gpt"
MAX_STOPS = 4


class BadRequest(ValueError):
    """A request that cannot be answered; the message says why, `param` is the field, and `status` that of HTTP."""

    def __init__(self, message: str, param: str | None = None, status: int = 400):
        super().__init__(message)
        self.param, self.status = param, status


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes
    ----------
    prompt : list of int
        Tokens.
    limit : int
        Most tokens to generate.
    temperature : float
        0 for the most probable token.
    seed : int or None
    stop : list of bytes
        Where any of these is generated, the text ends before it.
    stream : bool
        Whether each piece is sent as soon as it is there.
    """

    prompt: list[int]
    limit: int
    temperature: float = 1.0
    seed: int | None = None
    stop: list[bytes] = field(default_factory=list)
    stream: bool = False


def read_request(body: object, most: int) -> Asked:
    """Read the JSON of a request.

    Parameters
    ----------
    body : object
        The value of the JSON.
    most : int
        Most tokens of prompt and continuation together.

    Raises
    ------
    BadRequest
        A field is missing, of another kind, or out of range.

    Examples
    --------
    >>> read_request({"prompt": "ab", "max_tokens": 3, "stop": "x"}, 10)
    Asked(prompt=[97, 98], limit=3, temperature=1.0, seed=None, stop=[b'x'], stream=False)
    """
    if not isinstance(body, dict):
        raise BadRequest('The body must be a JSON object, such as {"prompt": "def ", "max_tokens": 20}.')
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise BadRequest("prompt must be a text of at least one character; one request has one prompt.", "prompt")
    tokens = list(prompt.encode(errors="replace"))
    limit = _number(body, "max_tokens", 16, 1, None, whole=True)
    if len(tokens) + limit > most:
        raise BadRequest(
            f"prompt and max_tokens are {len(tokens)} + {limit} tokens (a token is a byte), but this server has room for {most}.",
            "max_tokens",
        )
    if body.get("n", 1) != 1:
        raise BadRequest("n must be 1: one request has one answer.", "n")
    stop = body.get("stop")
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or len(stop) > MAX_STOPS or not all(isinstance(s, str) and s for s in stop):
        raise BadRequest(f"stop must be a text, or a list of up to {MAX_STOPS} texts, none of them empty.", "stop")
    if not isinstance(stream := body.get("stream", False), bool):
        raise BadRequest(f"stream must be true or false; got {str(stream)[:40]!r}.", "stream")
    seed = None if body.get("seed") is None else int(_number(body, "seed", 0, 0, 2**63, whole=True))
    temperature = float(_number(body, "temperature", 1.0, 0, 2))
    return Asked(tokens, int(limit), temperature, seed, [s.encode(errors="replace") for s in stop], stream)


def _number(body: dict, name: str, default: float, least: float, most: float | None, *, whole: bool = False) -> float:
    value = default if body.get(name) is None else body[name]
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= (value if most is None else most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise BadRequest(f"{name} must be a {'whole ' if whole else ''}number {limits}; got {str(value)[:40]!r}.", name)
    return value


class Answer:
    """The answer to a request, as it grows: bytes become text, and a stop sequence ends it.

    Parameters
    ----------
    asked : Asked

    Attributes
    ----------
    finished : str or None
        "length" or "stop", once it is complete.

    Examples
    --------
    >>> answer = Answer(Asked([97], 9, stop=[b"cd"]))
    >>> [answer.add(token) for token in b"abcd"], answer.finished
    (['a', 'b', '', ''], 'stop')
    """

    def __init__(self, asked: Asked):
        self.asked, self.finished, self.count, self.pieces = asked, None, 0, []
        self.id, self.created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self._held, self._decoder = b"", codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """Take the next token; return the text that is certain by now, often a character, sometimes none."""
        self.count += 1
        self._held += bytes([token])
        stops = [self._held.find(stop) for stop in self.asked.stop]
        if any(at >= 0 for at in stops):
            self.finished, ready = "stop", self._held[: min(at for at in stops if at >= 0)]
        else:
            self.finished = "length" if self.count >= self.asked.limit else None
            # The end of what is there may be the beginning of a stop sequence.
            keep = max(
                (k for stop in self.asked.stop for k in range(min(len(stop), len(self._held) + 1)) if self._held.endswith(stop[:k])),
                default=0,
            )
            ready = self._held if self.finished or not keep else self._held[:-keep]
        self._held = self._held[len(ready) :]
        piece = self._decoder.decode(ready, bool(self.finished))
        self.pieces.append(piece)
        return piece

    def as_json(self, piece: str | None = None, finished: str | None = None) -> dict:
        """The whole answer, or a piece of a stream, as OpenAI's clients read it."""
        text, finished = (piece, finished) if piece is not None else ("".join(self.pieces), self.finished)
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finished}
        found = {"id": self.id, "object": "text_completion", "created": self.created, "model": MODEL_NAME, "choices": [choice]}
        if piece is None:
            prompt = len(self.asked.prompt)
            found["usage"] = {"prompt_tokens": prompt, "completion_tokens": self.count, "total_tokens": prompt + self.count}
        return found
