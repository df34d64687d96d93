"""The prompts of a request: texts, token ids, or messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tidal.errors import InvalidArgument
from tidal.flover.chat import ChatTemplate, read_messages, read_tools
from tidal.flover.sampling import IntArray
from tidal.options import RequestOptions
from tidal.requests import Array
from tidal.text import TextTokenizer

_SOURCES = ("text_input", "input_ids", "messages")
# Messages have more bytes as JSON than as prompt, and tools may have long descriptions.
_MORE_BYTES = 1 << 18


class Prompt(NamedTuple):
    """One prompt.

    Attributes:
        ids: Token ids, [tokens] int64.
        text: Text of the prompt, for answers that echo it.
    """

    ids: IntArray
    text: str


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Reads the prompts of requests to one model.

    Attributes:
        tokenizer: Tokenizer of the model, limited to the longest prompt.
        vocabulary: Size of the vocabulary; token ids are below it.
        slots: Number of slots of the model; a request needs one per text or beam.
        chat: Chat template of the model; None if it has none.
    """

    tokenizer: TextTokenizer
    vocabulary: int
    slots: int
    chat: ChatTemplate | None = None

    def read(self, inputs: Mapping[str, Array], options: RequestOptions, each: int, unit: str) -> list[Prompt]:
        """Return the prompts of a request.

        Args:
            inputs: Arrays by input name.
            options: Options of the request.
            each: Number of slots that a prompt needs.
            unit: Name of what a prompt needs a slot for.

        Raises:
            InvalidArgument: The request has no prompt, several kinds of them, or one that is not accepted.
        """
        sent = [name for name in _SOURCES if name in inputs]
        if not sent:
            raise InvalidArgument(
                "the request has neither text_input nor input_ids nor messages; accepted is one of them"
            )
        if len(sent) > 1:
            raise InvalidArgument(f"both {sent[0]} and {sent[1]} were sent; accepted is one of them")
        if "messages" not in inputs:
            for name, value in (("tools", inputs.get("tools")),
                                ("request option 'chat_template_kwargs'", options.chat_template_kwargs)):  # fmt: skip
                if value is not None:
                    raise InvalidArgument(f"{name} requires messages: it is passed to the model's chat template")
        if "input_ids" in inputs:
            ids = self._checked_ids(np.asarray(inputs["input_ids"], np.int64))
            echoed = self.tokenizer.tokenizer.decode(ids.tolist()) if options.echo else ""
            return [Prompt(ids, echoed)]
        if "messages" in inputs:
            return [self._chat_prompt(inputs, options)]
        return self._tokenized(inputs["text_input"], each, unit)

    def _chat_prompt(self, inputs: Mapping[str, Array], options: RequestOptions) -> Prompt:
        if self.chat is None:
            raise InvalidArgument(
                "messages were sent, and this model has no chat template; send the prompt as text_input or input_ids"
            )
        max_bytes = self.tokenizer.max_bytes + _MORE_BYTES
        messages = read_messages(inputs["messages"], max_bytes)
        tools = read_tools(inputs.get("tools"), max_bytes)
        text = self.chat.render(messages, tools, options.chat_template_kwargs)
        what = "the rendered chat template"
        try:
            (encoded,) = self.tokenizer.encode_all([text.encode()], special=False)
        except UnicodeEncodeError:
            raise InvalidArgument(
                "messages or tools have half of a surrogate pair; accepted is valid Unicode"
            ) from None
        except InvalidArgument as error:
            raise InvalidArgument(str(error).replace("text_input row 0", what)) from None
        return Prompt(self._inside(encoded.ids, what), text)

    def _checked_ids(self, ids: IntArray) -> IntArray:
        if ids.ndim != 1 or not 1 <= len(ids) <= self.tokenizer.max_length:
            raise InvalidArgument(
                f"input_ids has shape {list(ids.shape)}; accepted is [tokens], 1 to {self.tokenizer.max_length}"
            )
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            wrong = int(ids[(ids < 0) | (ids >= self.vocabulary)][0])
            raise InvalidArgument(f"input_ids has the id {wrong}; accepted are 0 to {self.vocabulary - 1}")
        return ids

    def _tokenized(self, texts: Array, each: int, unit: str) -> list[Prompt]:
        most = self.slots // each
        if texts.ndim != 1 or not 1 <= len(texts) <= most:
            of_each = f" of {each} {unit} each" if each > 1 else ""
            raise InvalidArgument(
                f"text_input has shape {list(texts.shape)}; accepted is [prompts], 1 to {most}{of_each}: this model "
                f"has {self.slots} slots, its max_concurrency"
            )
        encoded = self.tokenizer.encode_all(list(texts))
        return [
            Prompt(self._inside(each.ids, f"text_input row {row}"), bytes(text).decode())
            for row, (each, text) in enumerate(zip(encoded, texts, strict=True))
        ]

    def _inside(self, ids: IntArray, what: str) -> IntArray:
        """Check that a tokenised text has tokens that the model knows."""
        if not len(ids):
            raise InvalidArgument(f"{what} has no tokens; accepted is a text of at least one word")
        if ids.max() >= self.vocabulary:
            raise InvalidArgument(f"{what} has the token id {ids.max()}; accepted are 0 to {self.vocabulary - 1}")
        return ids
