"""A chat, embeddings and a classification through the unmodified `openai` library and the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import openai

from demo import search, writing


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the library.

    Attributes:
        path: Path of the API.
        model: Model, or model/task.
        answer: Answer as text for people.
        tokens: Tokens that the answer counts.
        ms: Milliseconds until the whole answer had arrived.
    """

    path: str
    model: str
    answer: str
    tokens: int
    ms: float


def ask(url: str) -> list[Call]:
    """Send one request of each kind.

    Args:
        url: URL of the gateway.
    """
    # The gateway answers 503, which the library retries, until its first check of the server.
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=8) as client:
        client.models.list()
        return [_timed(each, client) for each in (_chat, _embed, _classify)]


def _timed(call: Callable[[openai.OpenAI], tuple[str, str, str, int]], client: openai.OpenAI) -> Call:
    call(client)
    began = time.perf_counter()
    path, model, answer, tokens = call(client)
    return Call(path, model, answer, tokens, (time.perf_counter() - began) * 1e3)


def _chat(client: openai.OpenAI) -> tuple[str, str, str, int]:
    stream = client.chat.completions.create(
        model=writing.MODEL,
        messages=[{"role": "user", "content": writing.PROMPTS[0]}],
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    parts, tokens = [], 0
    for chunk in stream:
        parts += [choice.delta.content or "" for choice in chunk.choices]
        tokens = chunk.usage.total_tokens if chunk.usage else tokens
    return "/v1/chat/completions", writing.MODEL, f"{writing.PROMPTS[0]}{''.join(parts)}", tokens


def _embed(client: openai.OpenAI) -> tuple[str, str, str, int]:
    found = client.embeddings.create(model=search.MODEL, input=list(search.QUERIES))
    answer = f"{len(found.data)} vectors of {len(found.data[0].embedding)}"
    return "/v1/embeddings", search.MODEL, answer, found.usage.total_tokens


def _classify(client: openai.OpenAI) -> tuple[str, str, str, int]:
    body = {"model": "encoder/city", "input": "how long does it take to drive to Oslo", "top_k": 2}
    found = client.post("/classify", body=body, cast_to=dict[str, object])
    (row,), usage = found["data"], found["usage"]  # type: ignore[misc]
    answer = ", ".join(f"{each['label']} {each['score']:.3f}" for each in row["labels"])  # type: ignore[has-type]
    return "/v1/classify", str(body["model"]), answer, int(usage["total_tokens"])  # type: ignore[index]
