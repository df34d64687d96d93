"""The chat template of a model: a Jinja template, rendered in a sandbox as `transformers` does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidal.errors import InvalidArgument

CHAT_FILE = "tokenizer/chat.json"

# Of several templates, the one that is used where the request has tools, and the one that is used otherwise.
_TOOL_TEMPLATE, _DEFAULT_TEMPLATE = "tool_use", "default"
# Names that models use for an assistant's reasoning; templates read the first one, or "thinking".
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


class ChatFormat(BaseModel):
    """The published chat templates of a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    templates: dict[str, str] = Field(min_length=1, description="Jinja templates by name; 'default' if there is one")
    special_tokens: dict[str, str] = Field(description="variables of the templates, such as bos_token and eos_token")


class ChatTemplate:
    """Renders messages as a prompt that asks for the assistant's next message.

    Args:
        chat: Published templates.

    Raises:
        InvalidArgument: A template is not valid Jinja; names it.
    """

    def __init__(self, chat: ChatFormat) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._special_tokens = dict(chat.special_tokens)
        self._templates: dict[str, jinja2.Template] = {}
        for name, source in chat.templates.items():
            try:
                self._templates[name] = environment.from_string(source)
            except jinja2.TemplateError as error:
                raise InvalidArgument(f"the chat template '{name}' is not valid Jinja: {_one_line(error)}") from None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a conversation.

        Args:
            messages: Messages, the oldest first.
            tools: JSON schemas of functions that the assistant may call; None without any.
            variables: Further variables of the template, which replace those of equal names.

        Raises:
            InvalidArgument: The template refuses the messages, or fails on them; has its reason.
        """
        template = self._templates.get(_TOOL_TEMPLATE) if tools is not None else None
        template = template or self._templates.get(_DEFAULT_TEMPLATE)
        if template is None:
            raise InvalidArgument(
                f"the model has the chat templates {', '.join(sorted(self._templates))}, and none of them is "
                f"'{_DEFAULT_TEMPLATE}'; send the prompt as text_input"
            )
        values = {
            **self._special_tokens, "tools": tools, "documents": None, "add_generation_prompt": True,
            **(variables or {}), "messages": [_normalised(each) for each in messages],
        }  # fmt: skip
        try:
            return template.render(**values)
        except InvalidArgument:
            raise
        except Exception as error:  # templates can fail in any way on fields that they do not expect
            raise InvalidArgument(f"the model's chat template refuses these messages: {_one_line(error)}") from None


def load_chat_template(version_dir: Path) -> ChatTemplate | None:
    """Open the chat template of a published version; None if the model has none.

    Args:
        version_dir: Folder of the version.

    Raises:
        InvalidArgument: The file is not valid, or a template is not.
    """
    path = version_dir / CHAT_FILE
    if not path.is_file():
        return None
    try:
        return ChatTemplate(ChatFormat.model_validate_json(path.read_bytes()))
    except ValidationError as error:
        raise InvalidArgument(f"{path} is not valid: {_one_line(error)}") from None


class _GenerationBlocks(Extension):
    """The tag `generation`, which marks the assistant's part for training, and changes nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _normalised(message: Message) -> Message:
    """A message without fields that are null, and with its reasoning under the names that templates read."""
    present = {name: value for name, value in message.items() if value is not None}
    reasoning = next((present[name] for name in _REASONING_FIELDS if name in present), None)
    return present if reasoning is None else {"thinking": reasoning, **present, "reasoning_content": reasoning}


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Jinja's own filter escapes characters of HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
