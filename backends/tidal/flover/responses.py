"""Responses to one request: a part at a time, or the texts of all its prompts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tidal.flover.tasks.adapter import LoraAdapter
from tidal.requests import Array, StreamedRequest
from tidal.tasks.lease import Lease

OUTPUTS = ("finish_reason", "generated_tokens", "index", "prompt_tokens", "text_output", "token_ids")

#: Why a generation ended: at an end-of-text token, at a stop string, or at its largest number of tokens.
FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True)
class ResponsePart:
    """New tokens and text of one prompt.

    Attributes:
        index: Index of the prompt in its request.
        text: Text since the previous part.
        tokens: Token ids since the previous part.
        finish_reason: Why the generation ended; None while it runs.
        prompt_tokens: Number of tokens of the prompt.
        generated_tokens: Number of tokens generated up to the end of this part.
    """

    index: int
    text: str
    tokens: Sequence[int]
    finish_reason: FinishReason | None
    prompt_tokens: int
    generated_tokens: int


@dataclass(eq=False, slots=True)
class FloverResponse:
    """The response to one request, or its sequence of responses. One thread at a time may send.

    Attributes:
        request: Request to answer.
        prompts: Number of prompts of the request.
        streaming: Whether the client gets text as it is generated; otherwise it gets a single response.
        cancelled: Whether the client has cancelled the request.
        task: Task of all prompts, kept in memory until the last generation has ended; None for the base model.
    """

    request: StreamedRequest
    prompts: int
    streaming: bool
    cancelled: bool = False
    task: Lease[LoraAdapter] | None = None
    _ended: int = field(default=0, init=False)
    _last_parts: dict[int, ResponsePart] = field(default_factory=dict, init=False)

    def generation_ended(self) -> None:
        """Record that the generation of one prompt has ended; the last one releases the task."""
        self._ended += 1
        if self._ended == self.prompts and self.task is not None:
            self.task.release()

    def send(self, part: ResponsePart) -> None:
        """Send a part, or keep it until all prompts have ended; the end of the last prompt completes the response."""
        if part.finish_reason is not None:
            self._last_parts[part.index] = part
        complete = len(self._last_parts) == self.prompts
        if self.streaming:
            send = self.request.reply if complete else self.request.part
            send(self._outputs([part]))
        elif complete:
            self.request.reply(self._outputs([self._last_parts[index] for index in range(self.prompts)]))

    def _outputs(self, parts: Sequence[ResponsePart]) -> dict[str, Array]:
        outputs: dict[str, Array] = {
            "index": np.array([part.index for part in parts], np.int32),
            "text_output": np.array([part.text.encode() for part in parts], object),
            "token_ids": np.array([token for part in parts for token in part.tokens], np.int64),
        }
        finish_reasons = [part.finish_reason.encode() for part in parts if part.finish_reason is not None]
        if finish_reasons:
            outputs["finish_reason"] = np.array(finish_reasons, object)
            outputs["prompt_tokens"] = np.array([part.prompt_tokens for part in parts], np.int32)
            outputs["generated_tokens"] = np.array([part.generated_tokens for part in parts], np.int32)
        return {name: values for name, values in outputs.items() if self.request.wants(name)}
