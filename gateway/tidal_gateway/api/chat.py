"""OpenAI's chats: `POST /v1/chat/completions`; the model renders the messages by its chat template."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import numpy as np
import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from tidal_client.options import Parameter
from tidal_client.results import Array, Generated
from tidal_gateway.api.answers import DONE, EventStream, HttpAnswer, dump, event, json_answer
from tidal_gateway.api.completions import StreamOptions
from tidal_gateway.api.generation import (
    NEUTRAL,
    PromptCall,
    finish_reason,
    generate,
    generate_stream,
    prompt_calls,
    usage,
)
from tidal_gateway.api.logprobs import chat_logprobs, logprob_options
from tidal_gateway.api.options import Body, passed_on, with_synonym
from tidal_gateway.api.request import ApiRequest, ModelTarget
from tidal_gateway.errors import invalid
from tidal_gateway.tools.calls import CallParser, CallPart
from tidal_gateway.tools.formats import ToolFormat
from tidal_gateway.tools.requests import Tool, ToolUse, read_tool_use, response_options
from tidal_gateway.upstream.models import Use


class Message(BaseModel):
    """One message of a chat; the model's chat template decides which further fields mean something."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: StrictStr
    content: StrictStr | list[dict[str, Any]] | None = None


class ChatBody(Body):
    """Body of `POST /v1/chat/completions`."""

    model: StrictStr = Field(description="model, or model/task")
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] | None = Field(None, description="functions that the model may call")
    tool_choice: Any = Field(None, description="auto, none, required, or {type: function, function: {name}}")
    parallel_tool_calls: StrictBool | None = Field(None, description="whether an answer may have several calls")
    response_format: dict[str, Any] | None = Field(
        None, description="{type: text}, {type: json_object}, or {type: json_schema, json_schema: {schema}}"
    )
    n: StrictInt = Field(1, ge=1, description="number of answers")
    logprobs: StrictBool | None = Field(None, description="whether to return the log probability of each token")
    top_logprobs: StrictInt | None = Field(
        None, ge=0, le=20, description="number of most likely tokens to return at each token"
    )
    max_completion_tokens: StrictInt | None = Field(None, description="the same as max_tokens")
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    user: StrictStr | None = Field(None, description="accepted for compatibility; has no effect")
    metadata: dict[str, Any] | None = Field(None, description="accepted for compatibility; has no effect")


async def chat(request: ApiRequest) -> HttpAnswer | EventStream:
    """Answer the last message of a chat."""
    body = request.parse(ChatBody)
    if body.stream_options is not None and not body.stream:
        raise invalid("field 'stream_options' requires stream: true", "stream_options")
    fields = with_synonym(body.extra, "max_tokens", "max_completion_tokens", body.max_completion_tokens)
    options = passed_on(fields, request.headers, ChatBody.model_fields, NEUTRAL)
    target = await request.target(body.model, Use.GENERATION, options.get("task"))
    if Use.CHAT not in target.facts.uses:
        raise invalid(f"model '{target.name}' does not chat; use /v1/completions", "model")
    form = request.gateway.tool_format(target.name)
    tools = read_tool_use(body.tools, body.tool_choice, body.parallel_tool_calls, form, target.name)
    options |= _guided(body, options, tools)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("field 'top_logprobs' requires logprobs: true", "top_logprobs")
    options |= logprob_options(target, body.top_logprobs or 0 if body.logprobs else None)
    inputs = _inputs(body, tools)
    prefix = bytes(inputs["messages"][0]).decode()
    calls = prompt_calls([(inputs, prefix)], body.n, options, request.gateway.settings.max_choices)
    head = {
        "id": f"chatcmpl-{request.exchange.request_id}",
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(time.time()),
        "model": body.model,
    }
    if body.stream:
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_events(request, target, calls, head, tools, include_usage))
    texts = await generate(request, target, calls)
    found = [_choice(index, each, tools) for index, each in enumerate(texts)]
    return json_answer({**head, "choices": found, "usage": usage(request)})


def _guided(body: ChatBody, options: Mapping[str, Parameter], tools: ToolUse | None) -> dict[str, Parameter]:
    """Options of guided output, of which a request can have one."""
    wanted = {
        "response_format": response_options(body.response_format),
        "tool_choice": {} if tools is None else tools.options(),
        **{name: {name: value} for name, value in options.items() if name.startswith("guided_")},
    }
    named = [name for name, value in wanted.items() if value]
    if len(named) > 1:
        raise invalid(f"fields '{named[0]}' and '{named[1]}' both prescribe the answer; send one of them", named[0])
    return wanted[named[0]] if named else {}


def _choice(index: int, text: Generated, tools: ToolUse | None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text.text, "refusal": None}
    reason = finish_reason(text)
    if tools is not None:
        parser = tools.parser(whole=True)
        content, calls = _joined([*parser.feed(text.text), *parser.finish()], tools.form)
        if calls:
            message |= {"content": content or None, "tool_calls": calls}
            reason = _reason(reason, tools, parser)
    return {"index": index, "message": message, "logprobs": chat_logprobs(text), "finish_reason": reason}


def _joined(parts: Sequence[str | CallPart], form: ToolFormat) -> tuple[str, list[dict[str, Any]]]:
    """Text and calls of a whole answer."""
    calls: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            continue
        if part.name is not None:
            calls.append({"id": form.new_id(), "type": "function", "function": {"name": part.name, "arguments": ""}})
        calls[part.index]["function"]["arguments"] += part.arguments
    return "".join(part for part in parts if isinstance(part, str)), calls


def _reason(reason: str | None, tools: ToolUse, parser: CallParser) -> str | None:
    """Why an answer ended: with calls, unless they were cut off, or the client has named the function."""
    return "tool_calls" if reason == "stop" and parser.calls and not tools.named else reason


async def _events(
    request: ApiRequest,
    target: ModelTarget,
    calls: Sequence[PromptCall],
    head: Mapping[str, Any],
    tools: ToolUse | None,
    include_usage: bool,
) -> AsyncGenerator[bytes, None]:
    tail: dict[str, Any] = {"usage": None} if include_usage else {}
    begun: set[int] = set()
    parsers: dict[int, CallParser] = {}
    async with aclosing(generate_stream(request, target, calls)) as parts:
        async for index, part in parts:
            reason = finish_reason(part)
            deltas: list[dict[str, Any]] = [{"content": part.text}]
            if tools is not None:
                parser = parsers.setdefault(index, tools.parser(whole=False))
                found = [*parser.feed(part.text), *(parser.finish() if reason is not None else ())]
                deltas = [_delta(each, tools.form) for each in found] or [{}]
                reason = _reason(reason, tools, parser)
            if index not in begun:
                begun.add(index)
                deltas[0] = {"role": "assistant", **deltas[0]}
            for place, delta in enumerate(deltas):
                last = place == len(deltas) - 1
                each = {
                    "index": index,
                    "delta": delta,
                    "logprobs": chat_logprobs(part) if last else None,
                    "finish_reason": reason if last else None,
                }
                yield event(dump({**head, "choices": [each], **tail}))
    if include_usage:
        yield event(dump({**head, "choices": [], "usage": usage(request)}))
    yield DONE


def _delta(part: str | CallPart, form: ToolFormat) -> dict[str, Any]:
    if isinstance(part, str):
        return {"content": part}
    call: dict[str, Any] = {"index": part.index, "function": {"arguments": part.arguments}}
    if part.name is not None:
        call = {**call, "id": form.new_id(), "type": "function", "function": {"name": part.name, **call["function"]}}
    return {"tool_calls": [call]}


def _inputs(body: ChatBody, tools: ToolUse | None) -> dict[str, Array]:
    messages = [_with_objects(each.model_dump(exclude_unset=True)) for each in body.messages]
    inputs: dict[str, Array] = {"messages": _json_input("messages", messages)}
    if tools is not None:
        inputs["tools"] = _json_input("tools", [each.model_dump(exclude_unset=True) for each in tools.tools])
    return inputs


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as objects, as templates expect them, instead of JSON texts."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_object(each) for each in calls]}


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = pydantic_core.from_json(function["arguments"] or "{}")
    except ValueError:
        shown = function["arguments"][:80]
        raise invalid(f"field 'messages': the arguments of a tool call are no JSON: {shown!r}", "messages") from None
    return {**call, "function": {**function, "arguments": arguments}}


def _json_input(name: str, value: Any) -> Array:
    try:
        return np.array([dump(value)], np.object_)
    except TypeError as error:
        raise invalid(f"field '{name}': not representable as JSON: {error}", name) from None
