"""What goes back for one request: a part at a time, or all of its prompts' texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tidal.flover.tasks.adapter import Adapter
from tidal.requests import Array, StreamedRequest
from tidal.tasks.lease import Lease

OUTPUTS = ("finish_reason", "generated_tokens", "index", "prompt_tokens", "text_output", "token_ids")

#: Why a generation ended: its last token says so, a stop text, or it has all tokens that it may have.
Finish = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True)
class Part:
    """What came of a prompt's text.

    Attributes:
        index: of the prompt in its request.
        text: that came since the part before.
        tokens: of it.
        finish: why the text ended; None: it has not.
        prompt_tokens: of the prompt.
        generated_tokens: of this part and all before it.
    """

    index: int
    text: str
    tokens: Sequence[int]
    finish: Finish | None
    prompt_tokens: int
    generated_tokens: int


@dataclass(eq=False, slots=True)
class Answer:
    """The answer to one request. One thread at a time may send.

    Attributes:
        request: that is answered.
        prompts: of the request.
        parts: whether the client gets text as it comes; else one answer.
        withdrawn: the client has gone.
        task: of all prompts, kept in memory until the last one's generation has come to its end; None: they have none.
    """

    request: StreamedRequest
    prompts: int
    parts: bool
    withdrawn: bool = False
    task: Lease[Adapter] | None = None
    _left: int = field(default=0, init=False)
    _ended: dict[int, Part] = field(default_factory=dict, init=False)

    def leave(self) -> None:
        """A prompt's generation has come to its end."""
        self._left += 1
        if self._left == self.prompts and self.task is not None:
            self.task.release()

    def send(self, part: Part) -> None:
        """Send a part, or keep it until all is there; with the last prompt's end, answer."""
        if part.finish is not None:
            self._ended[part.index] = part
        complete = len(self._ended) == self.prompts
        if self.parts:
            send = self.request.reply if complete else self.request.part
            send(self._outputs([part]))
        elif complete:
            self.request.reply(self._outputs([self._ended[index] for index in range(self.prompts)]))

    def _outputs(self, parts: Sequence[Part]) -> dict[str, Array]:
        outputs: dict[str, Array] = {
            "index": np.array([part.index for part in parts], np.int32),
            "text_output": np.array([part.text.encode() for part in parts], object),
            "token_ids": np.array([token for part in parts for token in part.tokens], np.int64),
        }
        finishes = [part.finish.encode() for part in parts if part.finish is not None]
        if finishes:
            outputs["finish_reason"] = np.array(finishes, object)
            outputs["prompt_tokens"] = np.array([part.prompt_tokens for part in parts], np.int32)
            outputs["generated_tokens"] = np.array([part.generated_tokens for part in parts], np.int32)
        return {name: values for name, values in outputs.items() if self.request.wants(name)}
