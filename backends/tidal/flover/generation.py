"""One text of a request in the engine: its tokens, and the part of them not yet sent."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tidal.flover.beams import BeamGroup
from tidal.flover.memory.slots import SlotCopy
from tidal.flover.policies import Schedulable
from tidal.flover.policies.prefixes import start_of
from tidal.flover.responses import FinishReason, FloverResponse, ResponsePart
from tidal.flover.sampling import IntArray, Sampler, TokenLogprobs
from tidal.flover.tasks.adapter import LoraAdapter
from tidal.flover.text import Detokenizer, StopMatcher
from tidal.requests import StreamedRequest


@dataclass(eq=False, slots=True)
class Generation(Schedulable):
    """A prompt and the text generated from it, with all that the engine needs to run and answer it.

    The engine's thread appends tokens, the responder's thread sends them.

    Attributes:
        response: Response of the request that the prompt belongs to.
        index: Index of the text in its request.
        prompt_ids: Token ids of the prompt, [tokens] int64.
        method: Sampler of its tokens, or the beam search over its slots.
        detokenizer: Decoder of its tokens to text.
        stops: Matcher of the request's stop strings.
        max_tokens: Largest number of tokens to generate.
        eos: Token ids that end the text and are not part of it.
        stop_ids: Token ids of the request that do the same.
        min_tokens: Number of tokens before which stop strings do not end the text.
        top_logprobs: Number of most likely tokens to record with each token; None: no log probabilities.
        echo: Text of the prompt, which the text begins with.
        prefill_ids: Token ids to prefill, [tokens] int64: the prompt, and the text before a preemption.
        prefill_start: Start of `prefill_ids`, see `start_of`.
        cached_tokens: Number of prompt tokens whose keys and values were not computed again.
        admitted: Whether its slots are allocated.
        prefilled: Number of tokens of `prefill_ids` whose keys and values are in the cache.
        tokens: Token ids generated so far; of a beam search those of the best text, once it has ended.
        logprobs: Log probabilities of these tokens; empty without `top_logprobs`.
        finish_reason: Why the generation ended; None while it runs.
        first_token_at: `time.monotonic()` seconds of the first token.
        last_token_at: `time.monotonic()` seconds of the latest token.
    """

    response: FloverResponse = field(kw_only=True)
    index: int = field(kw_only=True)
    prompt_ids: IntArray = field(kw_only=True)
    method: Sampler | BeamGroup = field(kw_only=True)
    detokenizer: Detokenizer = field(kw_only=True)
    stops: StopMatcher = field(kw_only=True)
    max_tokens: int = field(kw_only=True)
    eos: frozenset[int] = field(kw_only=True)
    stop_ids: frozenset[int] = field(default=frozenset(), kw_only=True)
    min_tokens: int = field(default=0, kw_only=True)
    top_logprobs: int | None = field(default=None, kw_only=True)
    echo: str = field(default="", kw_only=True)
    prefill_ids: IntArray = field(init=False)
    prefill_start: bytes = field(init=False)
    cached_tokens: int = field(default=0, init=False)
    admitted: bool = field(default=False, init=False)
    prefilled: int = field(default=0, init=False)
    tokens: list[int] = field(default_factory=list, init=False)
    logprobs: list[TokenLogprobs] = field(default_factory=list, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    first_token_at: float = field(default=0.0, init=False)
    last_token_at: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _unsent_text: str = field(default="", init=False)
    _sent_tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._unsent_text = self.echo
        self.prefill_ids, self.prefill_start = self.prompt_ids, start_of(self.prompt_ids)

    @property
    def request(self) -> StreamedRequest:
        """Request that the prompt belongs to."""
        return self.response.request

    @property
    def task(self) -> LoraAdapter | None:
        """LoRA adapter of the request's task; None for the base model."""
        return None if self.response.task is None else self.response.task.handle

    @property
    def generated(self) -> int:
        """Number of tokens generated so far, per beam."""
        return self.method.length if isinstance(self.method, BeamGroup) else len(self.tokens)

    @property
    def has_part(self) -> bool:
        """Whether a part can be sent now: text if the client wants it, else any token; never before a search ends."""
        if not self.response.streaming or isinstance(self.method, BeamGroup):
            return False
        return bool(self._unsent_text or not self.request.wants("text_output"))

    @property
    def urgent(self) -> bool:
        """Whether the next part is the first one or the end, which are sent without delay."""
        return self.finish_reason is not None or not self._sent_tokens

    def held_tokens(self, index: int) -> int:
        """Number of tokens whose keys and values a slot holds; those of the latest generated token are not held yet.

        Until it runs, slots other than the first hold nothing.
        """
        if (generated := self.generated) > self.recomputed:
            return self.prompt_tokens + generated - 1
        return self.prefilled if index == 0 else 0

    def preempt(self) -> None:
        """See `Schedulable`. All else continues as it is: the client notices a pause."""
        Schedulable.preempt(self)
        self.prefill_ids = np.concatenate([self.prompt_ids, np.array(self.tokens, np.int64)])
        self.prefill_start, self.prefilled = start_of(self.prefill_ids), 0

    def last_token(self, index: int) -> int:
        """Input token of the next decode step for a slot."""
        return self.method.last_token(index) if isinstance(self.method, BeamGroup) else self.tokens[-1]

    def append(self, token: int, now: float, logprobs: TokenLogprobs | None = None) -> None:
        """Append a token, and set `finish_reason` if it is the last.

        Args:
            token: Token id, below the model's vocabulary size.
            now: Current `time.monotonic()` seconds.
            logprobs: Log probabilities of the token; None without `top_logprobs`.
        """
        self._note_time(now)
        ended: FinishReason | None = "eos" if token in self.eos else "stop" if token in self.stop_ids else None
        piece = "" if ended else self.detokenizer.push(token)
        if ended is None and len(self.tokens) + 1 >= self.max_tokens:
            ended = "length"
        if len(self.tokens) + 1 < self.min_tokens:
            visible, stopped = self.stops.pass_over(piece), False
        else:
            visible, stopped = self.stops.push(piece)
        if ended is not None and not stopped:
            more, stopped = self.stops.push(self.detokenizer.finish())
            visible += more + ("" if stopped else self.stops.finish())
        with self._lock:
            self.tokens.append(token)
            if logprobs is not None:
                self.logprobs.append(logprobs)
            self._unsent_text += visible
            self.finish_reason = "stop" if stopped else ended

    def advance(self, beams: BeamGroup, logits: torch.Tensor, now: float) -> Sequence[SlotCopy]:
        """Append a token to each beam; if the search ends, take over its best text and set `finish_reason`.

        Args:
            beams: The generation's own beam search.
            logits: float32 [beams, vocabulary], in the order of `BeamGroup.slots`; [1, vocabulary] after the prompt.
            now: Current `time.monotonic()` seconds.

        Returns:
            Copies between the generation's slots to make before the next decode step.

        Raises:
            ArithmeticError: Logits are NaN or infinite.
        """
        copies = beams.advance(logits)
        self._note_time(now)
        if beams.ended:
            tokens = list(beams.best.tokens)
            eos = tokens[-1] in self.eos
            text = "".join(map(self.detokenizer.push, tokens[:-1] if eos else tokens)) + self.detokenizer.finish()
            with self._lock:
                self.tokens = tokens
                self._unsent_text += text
                self.finish_reason = "eos" if eos else "length"
        return copies

    def send_part(self) -> None:
        """Send the tokens and text that were not sent yet; nothing if an earlier part has sent them already."""
        with self._lock:
            if len(self.tokens) == self._sent_tokens:
                return
            text, self._unsent_text = self._unsent_text, ""
            tokens, logprobs = self.tokens[self._sent_tokens :], self.logprobs[self._sent_tokens :]
            self._sent_tokens = len(self.tokens)
            finish_reason = self.finish_reason
        part = ResponsePart(
            self.index, text, tokens, logprobs, finish_reason, self.prompt_tokens, self.cached_tokens, self._sent_tokens
        )
        self.response.send(part)

    def _note_time(self, now: float) -> None:
        if not self.first_token_at:
            self.first_token_at = now
        self.last_token_at = now
