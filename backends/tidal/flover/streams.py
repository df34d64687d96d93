"""One request on its way through the `flover` service: prompt, tokens, text, and what the client has not got yet."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tidal.flover.policies import Generation
from tidal.flover.sampling import Sampler
from tidal.flover.sampling.sampler import IntArray
from tidal.flover.text import Detokenizer, StopWatch
from tidal.requests import Array, StreamedRequest

OUTPUTS = ("finish_reason", "generated_tokens", "prompt_tokens", "text_output", "token_ids")

#: Why a generation ended: its last token says so, a stop text, or it has all tokens that it may have.
Finish = Literal["eos", "stop", "length"]


@dataclass(eq=False, slots=True)
class Stream(Generation):
    """A generation of the scheduler, with what is needed to run and answer it.

    The service's runner adds tokens, its responder sends them.

    Attributes:
        request: that is answered.
        ids: of the prompt, [tokens] int64.
        sampler: takes its tokens.
        detokenizer: makes text of them.
        stops: end that.
        most_tokens: to generate at most.
        parts: whether the client gets text as it comes; else one answer.
        admitted: whether it has a slot.
        read: tokens of the prompt whose keys and values are held.
        tokens: generated so far.
        finish: why it ended; None while it has not.
        withdrawn: the client has gone; as the responder found.
        first_at: `time.monotonic()` seconds of its first token.
        last_at: and of its last.
    """

    request: StreamedRequest = field(kw_only=True)
    ids: IntArray = field(kw_only=True)
    sampler: Sampler = field(kw_only=True)
    detokenizer: Detokenizer = field(kw_only=True)
    stops: StopWatch = field(kw_only=True)
    most_tokens: int = field(kw_only=True)
    parts: bool = field(kw_only=True)
    admitted: bool = field(default=False, init=False)
    read: int = field(default=0, init=False)
    tokens: list[int] = field(default_factory=list, init=False)
    finish: Finish | None = field(default=None, init=False)
    withdrawn: bool = field(default=False, init=False)
    first_at: float = field(default=0.0, init=False)
    last_at: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _text: str = field(default="", init=False)  # that was not sent
    _sent: int = field(default=0, init=False)  # tokens that were sent

    @property
    def held(self) -> int:
        """Tokens whose keys and values are held; those of the last token that was generated are not."""
        return self.prompt + len(self.tokens) - 1 if self.tokens else self.read

    @property
    def news(self) -> bool:
        """Whether a part can be sent: text where the client wants that, else any token."""
        return self.parts and bool(self._text or not self.request.wants("text_output"))

    def take(self, token: int, eos: frozenset[int], now: float) -> None:
        """Add a token; `finish` says whether it was the last.

        Args:
            token: below the model's vocabulary.
            eos: tokens that end a generation, and are no text.
            now: `time.monotonic()` seconds.
        """
        if not self.tokens:
            self.first_at = now
        self.last_at = now
        ends: Finish | None = "eos" if token in eos else None
        visible, stopped = self.stops.push("" if ends else self.detokenizer.push(token))
        if ends is None and len(self.tokens) + 1 >= self.most_tokens:
            ends = "length"
        if ends is not None and not stopped:
            more, stopped = self.stops.push(self.detokenizer.end())
            visible += more + ("" if stopped else self.stops.end())
        with self._lock:
            self.tokens.append(token)
            self._text += visible
            self.finish = "stop" if stopped else ends

    def send(self) -> None:
        """Send what the client has not got: a part, or the answer where the generation has ended."""
        with self._lock:
            text, self._text = self._text, ""
            tokens, self._sent = self.tokens[self._sent :], len(self.tokens)
            finish = self.finish
        outputs: dict[str, Array] = {}
        if self.request.wants("text_output"):
            outputs["text_output"] = np.array([text.encode()], object)
        if self.request.wants("token_ids"):
            outputs["token_ids"] = np.array(tokens, np.int64)
        if finish is None:
            self.request.part(outputs)
            return
        outputs["finish_reason"] = np.array([finish.encode()], object)
        outputs["prompt_tokens"] = np.array([self.prompt], np.int32)
        outputs["generated_tokens"] = np.array([len(self.tokens)], np.int32)
        self.request.reply(outputs)
