"""OpenAI's completions: `POST /v1/completions`, streamed and whole."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from tidal_client.results import Array
from tidal_gateway.api.answers import DONE, EventStream, HttpAnswer, dump, event, json_answer
from tidal_gateway.api.generation import (
    NEUTRAL,
    PromptCall,
    finish_reason,
    generate,
    generate_stream,
    prompt_calls,
    usage,
)
from tidal_gateway.api.inputs import encode
from tidal_gateway.api.logprobs import characters, completion_logprobs, logprob_options
from tidal_gateway.api.options import Body, passed_on
from tidal_gateway.api.request import ApiRequest, ModelTarget
from tidal_gateway.errors import invalid
from tidal_gateway.upstream.models import Use

_INT32_MAX = 2**31 - 1
Tokens = Annotated[list[StrictInt], Field(min_length=1)]


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    include_usage: StrictBool = Field(False, description="whether an event before the last has the numbers of tokens")
    include_obfuscation: StrictBool = Field(False, description="accepted for compatibility; has no effect")


class CompletionBody(Body):
    """Body of `POST /v1/completions`."""

    model: StrictStr = Field(description="model, or model/task")
    prompt: StrictStr | Annotated[list[StrictStr], Field(min_length=1)] | Tokens | list[Tokens] = Field(
        description="a text, texts, token ids of one text, or those of several"
    )
    n: StrictInt = Field(1, ge=1, description="number of texts for each prompt")
    logprobs: StrictInt | None = Field(
        None, ge=0, le=20, description="return log probabilities, and of so many most likely tokens at each token"
    )
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    user: StrictStr | None = Field(None, description="accepted for compatibility; has no effect")


async def completions(request: ApiRequest) -> HttpAnswer | EventStream:
    """Generate text from prompts."""
    body = request.parse(CompletionBody)
    if body.stream_options is not None and not body.stream:
        raise invalid("field 'stream_options' requires stream: true", "stream_options")
    options = passed_on(body.extra, request.headers, CompletionBody.model_fields, NEUTRAL)
    target = await request.target(body.model, Use.GENERATION, options.get("task"))
    if body.logprobs is not None and body.extra.get("echo"):
        raise invalid("field 'echo' cannot be combined with logprobs: those of prompts are not computed", "echo")
    options |= logprob_options(target, body.logprobs)
    prompts = _prompts(request, body.prompt)
    calls = prompt_calls(prompts, body.n, options, request.gateway.settings.max_choices)
    head = {
        "id": f"cmpl-{request.exchange.request_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model,
    }
    if body.stream:
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_events(request, target, calls, head, include_usage))
    texts = await generate(request, target, calls)
    found = [
        {
            "text": each.text,
            "index": index,
            "logprobs": completion_logprobs(each, 0),
            "finish_reason": finish_reason(each),
        }
        for index, each in enumerate(texts)
    ]
    return json_answer({**head, "choices": found, "usage": usage(request)})


async def _events(
    request: ApiRequest, target: ModelTarget, calls: Sequence[PromptCall], head: Mapping[str, Any], include_usage: bool
) -> AsyncGenerator[bytes, None]:
    tail: dict[str, Any] = {"usage": None} if include_usage else {}
    offsets: dict[int, int] = {}
    async with aclosing(generate_stream(request, target, calls)) as parts:
        async for index, part in parts:
            offset = offsets.get(index, 0)
            offsets[index] = offset + characters(part)
            each = {
                "text": part.text,
                "index": index,
                "logprobs": completion_logprobs(part, offset),
                "finish_reason": finish_reason(part),
            }
            yield event(dump({**head, "choices": [each], **tail}))
    if include_usage:
        yield event(dump({**head, "choices": [], "usage": usage(request)}))
    yield DONE


def _prompts(request: ApiRequest, prompt: Any) -> list[tuple[dict[str, Array], str]]:
    if isinstance(prompt, str):
        return [_text_prompt(prompt)]
    if isinstance(prompt[0], int):
        return [_token_prompt(prompt)]
    request.check_count("prompt", len(prompt))
    return [_text_prompt(each) if isinstance(each, str) else _token_prompt(each) for each in prompt]


def _text_prompt(text: str) -> tuple[dict[str, Array], str]:
    return {"text_input": np.array([encode("prompt", text)], np.object_)}, text


def _token_prompt(tokens: Sequence[int]) -> tuple[dict[str, Array], str]:
    if min(tokens) < 0 or max(tokens) > _INT32_MAX:
        raise invalid(f"field 'prompt': expected token ids from 0, got {str(list(tokens))[:80]}", "prompt")
    return {"input_ids": np.array(tokens, np.int64)}, ",".join(map(str, tokens[:64]))
