"""Responses to one request: a part at a time, or all of its texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tidal.flover.sampling import TokenLogprobs
from tidal.flover.tasks.adapter import LoraAdapter
from tidal.flover.text import TokenTexts
from tidal.requests import Array, StreamedRequest
from tidal.tasks.lease import Lease

OUTPUTS = (
    "cached_tokens", "finish_reason", "generated_tokens", "index", "logprobs", "prompt_tokens", "text_output",
    "token_ids", "token_texts", "top_logprobs", "top_token_ids", "top_token_texts",
)  # fmt: skip

#: Why a generation ended: at an end-of-text token, at a stop string or token, or at its largest number of tokens.
FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True)
class ResponsePart:
    """New tokens and text of one generation.

    Attributes:
        index: Index of the generation in its request.
        text: Text since the previous part.
        tokens: Token ids since the previous part.
        logprobs: Log probabilities of these tokens; empty if the request does not want them.
        finish_reason: Why the generation ended; None while it runs.
        prompt_tokens: Number of tokens of the prompt.
        cached_tokens: Number of them whose keys and values were not computed again.
        generated_tokens: Number of tokens generated up to the end of this part.
    """

    index: int
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprobs]
    finish_reason: FinishReason | None
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int

    @property
    def score(self) -> float:
        """Mean log probability of the tokens."""
        return sum(each.logprob for each in self.logprobs) / max(1, len(self.logprobs))


@dataclass(eq=False, slots=True)
class FloverResponse:
    """The response to one request, or its sequence of responses. One thread at a time may send.

    Attributes:
        request: Request to answer.
        prompts: Number of prompts of the request.
        streaming: Whether the client gets text as it is generated; otherwise it gets a single response.
        samples: Number of texts generated for each prompt.
        kept: Number of texts answered for each prompt: those with the highest mean log probability.
        token_texts: Texts of tokens, for a client that gets log probabilities; None if it does not.
        cancelled: Whether the client has cancelled the request.
        task: Task of all prompts, kept in memory until the last generation has ended; None for the base model.
    """

    request: StreamedRequest
    prompts: int
    streaming: bool
    samples: int = field(default=1, kw_only=True)
    kept: int = field(default=1, kw_only=True)
    token_texts: TokenTexts | None = field(default=None, kw_only=True)
    cancelled: bool = False
    task: Lease[LoraAdapter] | None = None
    _ended: int = field(default=0, init=False)
    _last_parts: dict[int, ResponsePart] = field(default_factory=dict, init=False)

    def generation_ended(self) -> None:
        """Record that one generation has ended; the last one releases the task."""
        self._ended += 1
        if self._ended == self.prompts * self.samples and self.task is not None:
            self.task.release()

    def send(self, part: ResponsePart) -> None:
        """Send a part, or keep it until all generations have ended; the end of the last one completes the response."""
        if part.finish_reason is not None:
            self._last_parts[part.index] = part
        complete = len(self._last_parts) == self.prompts * self.samples
        if self.streaming:
            outputs = self._outputs([part], [part.index])
            if complete:
                self.request.reply(outputs, partial=True)
            else:
                self.request.part(outputs)
        elif complete:
            parts = [part for prompt in range(self.prompts) for part in self._best(prompt)]
            # Log probabilities are outputs of requests that ask for them.
            self.request.reply(self._outputs(parts, range(len(parts))), partial=True)

    def _best(self, prompt: int) -> list[ResponsePart]:
        """Texts of a prompt to answer; the best ones first, if there are others."""
        parts = [self._last_parts[prompt * self.samples + sample] for sample in range(self.samples)]
        if self.samples > self.kept:
            parts.sort(key=lambda part: -part.score)
        return parts[: self.kept]

    def _outputs(self, parts: Sequence[ResponsePart], indices: Sequence[int]) -> dict[str, Array]:
        outputs: dict[str, Array] = {
            "index": np.array(indices, np.int32),
            "text_output": np.array([part.text.encode() for part in parts], object),
            "token_ids": np.array([token for part in parts for token in part.tokens], np.int64),
        }
        if self.token_texts is not None:
            texts, tokens = self.token_texts, [each for part in parts for each in part.logprobs]
            tops = len(tokens[0].top) if tokens else 0
            outputs["logprobs"] = np.array([each.logprob for each in tokens], np.float32)
            if self.request.wants("token_texts"):
                outputs["token_texts"] = texts.of(outputs["token_ids"])
            if tops:
                outputs["top_token_ids"] = np.array([each.top_ids for each in tokens], np.int64)
                outputs["top_logprobs"] = np.array([each.top for each in tokens], np.float32)
                if self.request.wants("top_token_texts"):
                    outputs["top_token_texts"] = texts.of(outputs["top_token_ids"])
        finish_reasons = [part.finish_reason.encode() for part in parts if part.finish_reason is not None]
        if finish_reasons:
            outputs["finish_reason"] = np.array(finish_reasons, object)
            outputs["prompt_tokens"] = np.array([part.prompt_tokens for part in parts], np.int32)
            outputs["cached_tokens"] = np.array([part.cached_tokens for part in parts], np.int32)
            outputs["generated_tokens"] = np.array([part.generated_tokens for part in parts], np.int32)
        return {name: values for name, values in outputs.items() if self.request.wants(name)}
