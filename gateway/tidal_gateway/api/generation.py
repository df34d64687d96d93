"""What completions and chats share: texts that are generated at once, and their parts in the order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tidal_client.generation import CODED_ERRORS, read_generated
from tidal_client.options import Parameter
from tidal_client.results import Array, Generated
from tidal_gateway.api.request import ApiRequest, ModelTarget, all_of
from tidal_gateway.errors import invalid

#: Fields of OpenAI's API that are not supported, with the values that request nothing.
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "prediction": (),
    "audio": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "resume": (),
}
#: Longest beginning of a prompt by which a server is chosen: prompts that share it share what a server holds of it.
PREFIX_CHARS: Final = 256
_FINISH: Final = {"eos": "stop", "stop": "stop", "length": "length"}
_WAITING_PARTS: Final = 64


@dataclass(frozen=True, slots=True)
class PromptCall:
    """One prompt to generate texts from.

    Attributes:
        first: Index of its first text among all texts of the request.
        count: Number of its texts.
        inputs: Arrays by input name, without `stream`.
        options: Parameters of the request.
        prefix: Beginning of the prompt.
    """

    first: int
    count: int
    inputs: Mapping[str, Array]
    options: Mapping[str, Parameter]
    prefix: str


def prompt_calls(
    prompts: Sequence[tuple[Mapping[str, Array], str]], count: int, options: Mapping[str, Parameter], most: int
) -> list[PromptCall]:
    """Return the calls of a request: one per prompt, which generates all its texts.

    Args:
        prompts: Inputs and beginning of each prompt.
        count: Number of texts per prompt.
        options: Parameters of the request.
        most: Maximum number of texts.

    Raises:
        Refusal: There are too many texts.
    """
    total = len(prompts) * count
    if total > most:
        raise invalid(f"field 'n': {total} texts are requested; accepted are up to max_choices, {most}", "n")
    own = {**options, CODED_ERRORS: True, **({"n": count} if count > 1 else {})}
    return [
        PromptCall(number * count, count, inputs, own, text[:PREFIX_CHARS])
        for number, (inputs, text) in enumerate(prompts)
    ]


def finish_reason(generated: Generated) -> str | None:
    """Return OpenAI's name of why a text ended."""
    return None if generated.finish_reason is None else _FINISH.get(generated.finish_reason, generated.finish_reason)


async def generate(request: ApiRequest, target: ModelTarget, calls: Sequence[PromptCall]) -> list[Generated]:
    """Generate all texts and return them whole, in their order."""
    found = await all_of([_whole(request, target, each) for each in calls])
    return [text for texts in found for text in texts]


async def _whole(request: ApiRequest, target: ModelTarget, call: PromptCall) -> list[Generated]:
    texts: list[Generated] = []
    async with aclosing(_parts(request, target, call, stream=False)) as stream:
        async for part in stream:
            texts.append(part)
    return sorted(texts, key=lambda each: each.index)


async def generate_stream(
    request: ApiRequest, target: ModelTarget, calls: Sequence[PromptCall]
) -> AsyncGenerator[tuple[int, Generated], None]:
    """Generate all texts at once and yield the index and the parts of each as they arrive; closing it cancels all."""
    if len(calls) == 1:
        async with aclosing(_parts(request, target, calls[0], stream=True)) as stream:
            async for part in stream:
                yield calls[0].first + part.index, part
        return
    arrived: asyncio.Queue[tuple[int, Generated | Exception | None]] = asyncio.Queue(_WAITING_PARTS)

    async def pump(call: PromptCall) -> None:
        end: Exception | None = None
        try:
            async with aclosing(_parts(request, target, call, stream=True)) as stream:
                async for part in stream:
                    await arrived.put((call.first + part.index, part))
        except Exception as error:
            end = error
        await arrived.put((call.first, end))

    tasks = [asyncio.create_task(pump(each)) for each in calls]
    running = len(tasks)
    try:
        while running:
            index, found = await arrived.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                running -= 1
            else:
                yield index, found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _parts(
    request: ApiRequest, target: ModelTarget, call: PromptCall, *, stream: bool
) -> AsyncGenerator[Generated, None]:
    inputs = {**call.inputs, "stream": np.array([stream])}
    exchange = request.exchange
    async with aclosing(request.stream(target, inputs, call.options, call.prefix)) as parts:
        async for outputs in parts:
            for part in read_generated(outputs):
                # Texts of the same prompt read it once.
                if part.prompt_tokens is not None and part.index == 0:
                    exchange.input_tokens += part.prompt_tokens
                    exchange.cached_tokens += part.cached_tokens or 0
                exchange.output_tokens += len(part.tokens)
                yield part


def usage(request: ApiRequest) -> dict[str, Any]:
    """Return OpenAI's `usage` of a request."""
    read, written = request.exchange.input_tokens, request.exchange.output_tokens
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": request.exchange.cached_tokens},
    }
