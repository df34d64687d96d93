"""One prompt on its way through the `flover` service: tokens, text, and what the client has not got yet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tidal.flover.answers import Answer, Finish, Part
from tidal.flover.beams import BeamGroup
from tidal.flover.memory.slots import Copy
from tidal.flover.policies import Generation
from tidal.flover.sampling import Sampler
from tidal.flover.sampling.sampler import IntArray
from tidal.flover.tasks.adapter import Adapter
from tidal.flover.text import Detokenizer, StopWatch
from tidal.requests import StreamedRequest


@dataclass(eq=False, slots=True)
class Stream(Generation):
    """A generation of the scheduler, with what is needed to run and answer it.

    The service's runner adds tokens, its responder sends them.

    Attributes:
        answer: that this is a part of.
        index: of the prompt in its request.
        ids: of the prompt, [tokens] int64.
        taker: takes its tokens: one at a time, or those of its beams, of which there is one for each of its slots.
        detokenizer: makes text of them.
        stops: end that.
        most_tokens: to generate at most.
        eos: tokens that end it, and are no text.
        admitted: whether it has its slots.
        read: tokens of the prompt whose keys and values are held.
        tokens: generated so far; of beams those of the best text, once it is known.
        finish: why it ended; None while it has not.
        first_at: `time.monotonic()` seconds of its first token.
        last_at: and of its last.
    """

    answer: Answer = field(kw_only=True)
    index: int = field(kw_only=True)
    ids: IntArray = field(kw_only=True)
    taker: Sampler | BeamGroup = field(kw_only=True)
    detokenizer: Detokenizer = field(kw_only=True)
    stops: StopWatch = field(kw_only=True)
    most_tokens: int = field(kw_only=True)
    eos: frozenset[int] = field(kw_only=True)
    admitted: bool = field(default=False, init=False)
    read: int = field(default=0, init=False)
    tokens: list[int] = field(default_factory=list, init=False)
    finish: Finish | None = field(default=None, init=False)
    first_at: float = field(default=0.0, init=False)
    last_at: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _text: str = field(default="", init=False)  # that was not sent
    _sent: int = field(default=0, init=False)  # tokens that were sent

    @property
    def request(self) -> StreamedRequest:
        """The request that it belongs to."""
        return self.answer.request

    @property
    def task(self) -> Adapter | None:
        """What its passes have of its own."""
        return None if self.answer.task is None else self.answer.task.handle

    @property
    def generated(self) -> int:
        """Tokens generated so far, of each beam."""
        return self.taker.length if isinstance(self.taker, BeamGroup) else len(self.tokens)

    @property
    def news(self) -> bool:
        """Whether a part can be sent: text where the client wants that, else any token; of beams only the end can."""
        if not self.answer.parts or isinstance(self.taker, BeamGroup):
            return False
        return bool(self._text or not self.request.wants("text_output"))

    @property
    def urgent(self) -> bool:
        """Whether its client waits for what it has not got: its first token, or its end."""
        return self.finish is not None or not self._sent

    def held(self, seat: int) -> int:
        """Tokens whose keys and values one of its slots holds; those of the last token that was generated are not.

        Until the prompt is read, the first slot alone holds anything.
        """
        if self.generated:
            return self.prompt + self.generated - 1
        return self.read if seat == 0 else 0

    def last(self, seat: int) -> int:
        """The token that the next step reads into one of its slots."""
        return self.taker.last(seat) if isinstance(self.taker, BeamGroup) else self.tokens[-1]

    def take(self, token: int, now: float) -> None:
        """Add a token; `finish` says whether it was the last.

        Args:
            token: below the model's vocabulary.
            now: `time.monotonic()` seconds.
        """
        self._took(now)
        ends: Finish | None = "eos" if token in self.eos else None
        if ends is None and len(self.tokens) + 1 >= self.most_tokens:
            ends = "length"
        visible, stopped = self.stops.push("" if ends == "eos" else self.detokenizer.push(token))
        if ends is not None and not stopped:
            more, stopped = self.stops.push(self.detokenizer.end())
            visible += more + ("" if stopped else self.stops.end())
        with self._lock:
            self.tokens.append(token)
            self._text += visible
            self.finish = "stop" if stopped else ends

    def advance(self, beams: BeamGroup, logits: torch.Tensor, now: float) -> Sequence[Copy]:
        """Add a token to each beam; where the search ends, `finish` says so, and the best text is taken.

        Args:
            beams: its own.
            logits: float32 [beams, vocabulary], in the order of their seats; [1, vocabulary] behind the prompt.
            now: `time.monotonic()` seconds.

        Returns:
            What to copy from seat to seat before the next step.

        Raises:
            ArithmeticError: logits are no numbers.
        """
        copies = beams.advance(logits)
        self._took(now)
        if beams.ended:
            tokens = list(beams.best.tokens)
            ended = tokens[-1] in self.eos
            text = "".join(map(self.detokenizer.push, tokens[:-1] if ended else tokens)) + self.detokenizer.end()
            with self._lock:
                self.tokens, self._text = tokens, text
                self.finish = "eos" if ended else "length"
        return copies

    def send(self) -> None:
        """Send what the client has not got."""
        with self._lock:
            text, self._text = self._text, ""
            tokens, self._sent = self.tokens[self._sent :], len(self.tokens)
            finish = self.finish
        self.answer.send(Part(self.index, text, tokens, finish, self.prompt, self._sent))

    def _took(self, now: float) -> None:
        if not self.first_at:
            self.first_at = now
        self.last_at = now
