"""Unmodified client libraries of others against the gateway and a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import langchain_openai
import numpy as np
import openai
import pytest

from testing.gateways import RunningGateway, running_gateway
from testing.waiting import until
from tests.gateway.conftest import Backend
from tests.gateway.embeddings import embedding
from tidal_client import Client
from tidal_gateway.keys.store import add_key

pytestmark = pytest.mark.server

MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
TEXT = "2 messages, 0 tools, hi"


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=30) as found:
        yield found


class TestOpenAI:
    def test_models(self, client: openai.OpenAI) -> None:
        assert {"embedder", "talker", "writer"} <= {each.id for each in client.models.list()}
        assert client.models.retrieve("writer").owned_by == "tidal"

    def test_embeddings(self, client: openai.OpenAI) -> None:
        texts = ["a b", "naïve cat"]
        found = client.embeddings.create(model="embedder", input=texts, dimensions=4)
        np.testing.assert_allclose([each.embedding for each in found.data], [embedding(t, 4) for t in texts], atol=1e-6)
        assert found.usage.total_tokens == 4

    def test_chat_whole_and_streamed(self, client: openai.OpenAI) -> None:
        whole = client.chat.completions.create(model="talker", messages=MESSAGES)  # type: ignore[arg-type]
        assert whole.choices[0].message.content == TEXT
        assert whole.choices[0].finish_reason == "stop"
        options = {"include_usage": True}
        stream = client.chat.completions.create(
            model="talker", messages=MESSAGES, stream=True, stream_options=options, n=2  # type: ignore[arg-type]
        )  # fmt: skip
        texts, usage = ["", ""], None
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
            usage = chunk.usage or usage
        assert texts == [TEXT, TEXT]
        assert usage is not None
        assert usage.prompt_tokens == 2

    def test_options_of_sampling_reach_the_model(self, client: openai.OpenAI, backend: Backend) -> None:
        """Each changes the text as it does for the client of the server; the last is no argument of the library."""
        always: Any = {"max_tokens": 24, "temperature": 1.0, "seed": 3}
        options: list[Any] = [
            {},
            {"presence_penalty": 1.5},
            {"frequency_penalty": -2.0},
            {"top_p": 0.2},
            {"repetition_penalty": 1.2},
        ]
        texts = []
        with Client(f"grpc://{backend.served.report['grpc']}") as direct:
            for option in options:
                sent = {"extra_body": {**option, "latency_ms": 20_000}} if "repetition_penalty" in option else option
                found = client.completions.create(model="writer", prompt="hello", **always, **sent)
                expected = direct.generate("writer", "hello", **always, **option)
                assert found.choices[0].text == expected.text, option
                assert found.usage is not None
                assert found.usage.completion_tokens == len(expected.tokens)
                texts.append(expected.text)
        assert len(set(texts)) == len(options), texts

    def test_errors_are_those_of_the_library(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="no server has the model 'nope'"):
            client.embeddings.create(model="nope", input="x")
        with pytest.raises(openai.BadRequestError, match="'suffix' is not supported") as caught:
            client.completions.create(model="writer", prompt="x", suffix="y")
        assert caught.value.param == "suffix"
        with pytest.raises(openai.RateLimitError, match="max_queue_size"):
            client.embeddings.create(model="embedder", input="error UNAVAILABLE max_queue_size is 4")
        with pytest.raises(openai.InternalServerError, match="broken"):
            client.embeddings.create(model="embedder", input="error INTERNAL broken")

    def test_a_stream_that_breaks_raises(self, client: openai.OpenAI) -> None:
        messages = [{"role": "user", "content": "die after 20"}]
        stream = client.chat.completions.create(model="talker", messages=messages, stream=True)  # type: ignore[call-overload]
        with pytest.raises(openai.APIError, match="the text so far is all"):
            for _ in stream:
                pass

        def answers() -> bool:
            return bool(client.chat.completions.create(model="talker", messages=MESSAGES).choices)  # type: ignore[arg-type]

        assert until(answers)

    def test_closing_a_stream_cancels_it(self, gateway: RunningGateway, backend: Backend) -> None:
        async def begin() -> str:
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", timeout=30) as client:
                messages = [{"role": "user", "content": "forever"}]
                stream = await client.chat.completions.create(model="talker", messages=messages, stream=True)  # type: ignore[call-overload]
                async for chunk in stream:
                    await stream.close()
                    return str(chunk.id).removeprefix("chatcmpl-")
            raise AssertionError("no chunk")

        identifier = asyncio.run(begin())
        assert until(lambda: f"cancelled {identifier}" in backend.log())
        assert f"ended {identifier}" not in backend.log()


class TestCohere:
    def test_rerank(self, gateway: RunningGateway) -> None:
        client = cohere.ClientV2(api_key="any", base_url=gateway.url)
        documents = ["x y", "a b", "a y"]
        found = client.rerank(model="reranker", query="a b c", documents=documents, top_n=2)
        assert [(each.index, each.relevance_score) for each in found.results] == [(1, 1.0), (2, 0.5)]
        with pytest.raises(cohere.NotFoundError, match="no server has the model"):
            client.rerank(model="nope", query="a", documents=["x"])


class TestJina:
    def test_rerank_as_documented(self, gateway: RunningGateway) -> None:
        document = {
            "model": "reranker",
            "query": "a b c",
            "top_n": 1,
            "documents": ["x", "a b"],
            "return_documents": True,
        }
        headers = {"Authorization": "Bearer any", "Content-Type": "application/json"}
        found = httpx.post(f"{gateway.url}/v1/rerank", json=document, headers=headers, timeout=30).json()
        assert found["results"] == [{"index": 1, "relevance_score": 1.0, "document": {"text": "a b"}}]
        assert found["usage"]["total_tokens"] > 0


class TestLangChain:
    def test_chat_embeddings_and_streams(self, gateway: RunningGateway) -> None:
        url = f"{gateway.url}/v1"
        chat = langchain_openai.ChatOpenAI(model="talker", base_url=url, api_key="any", max_retries=0)  # type: ignore[arg-type]
        assert chat.invoke([("system", "be kind"), ("human", "hi")]).text.startswith(TEXT)
        assert "".join(each.text for each in chat.stream([("system", "be kind"), ("human", "hi")])).startswith(TEXT)
        # Without this it cuts texts with a tokenizer that it downloads.
        embeddings = langchain_openai.OpenAIEmbeddings(
            model="embedder", base_url=url, api_key="any", check_embedding_ctx_length=False  # type: ignore[arg-type]
        )  # fmt: skip
        np.testing.assert_allclose(embeddings.embed_query("a b"), embedding("a b"), atol=1e-6)
        many = embeddings.embed_documents(["x", "y z"])
        np.testing.assert_allclose(many, [embedding("x"), embedding("y z")], atol=1e-6)


def test_keys_of_the_library_are_accepted(gateway: RunningGateway, backend: Backend, tmp_path: Path) -> None:
    """The `api_key` of `openai` is the key of the gateway."""
    key, _ = add_key(tmp_path / "keys.json", "me")
    with running_gateway(tmp_path, "--server", backend.address, "--keys", str(tmp_path / "keys.json")) as guarded:
        assert until(guarded.ready)
        with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0) as client:
            assert client.embeddings.create(model="embedder", input="x").data
        wrong = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0)
        with wrong as client, pytest.raises(openai.AuthenticationError, match="not known"):
            client.models.list()
