"""Requests of a kind that a model does not accept name the right method, for every transport and backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from testing.servers import RunningServer
from tidal_client import AsyncClient, Client, InvalidArgument, Unsupported

pytestmark = pytest.mark.server

TEXTS = r"it classifies texts, use Client\.classify or `tidal infer --text`"
IMAGES = r"it classifies images, use Client\.classify_image or `tidal infer --image`"


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: RunningServer) -> str:
    return f"{request.param}://{getattr(server, request.param)}"


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, url: str) -> Callable[..., Any]:
    def blocking(method: str, *arguments: Any) -> Any:
        with Client(url) as client:
            return getattr(client, method)(*arguments)

    def awaited(method: str, *arguments: Any) -> Any:
        async def run() -> Any:
            async with AsyncClient(url) as client:
                return await getattr(client, method)(*arguments)

        return asyncio.run(run())

    return blocking if request.param == "sync" else awaited


@pytest.mark.parametrize(
    ("model", "use"),
    [("intents", TEXTS), ("encoder", TEXTS), ("intents_cascade", TEXTS), ("digits", IMAGES)],
)
def test_generate_of_a_classifier(call: Callable[..., Any], model: str, use: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"model '{model}' has no input 'stream'.*: {use}"):
        call("generate", model, "once")


def test_a_stream_of_a_classifier(url: str) -> None:
    with Client(url) as client, pytest.raises(InvalidArgument, match=TEXTS):
        list(client.generate_stream("intents", "once"))


def test_texts_and_images(call: Callable[..., Any]) -> None:
    with pytest.raises(
        InvalidArgument, match=rf"model 'digits' has no input 'text_input'; its inputs are image.*: {IMAGES}"
    ):
        call("classify", "digits", "a cat")
    with pytest.raises(
        InvalidArgument, match=rf"model 'intents' has no input 'image'; its inputs are text_input.*: {TEXTS}"
    ):
        call("classify_image", "intents", b"")


def test_classify_of_a_decoder(call: Callable[..., Any]) -> None:
    with pytest.raises(
        Unsupported, match=r"this model streams its responses: use Client\.generate or `tidal generate`"
    ):
        call("classify", "writer", "once")


def test_a_pair_for_a_cascade_of_single_texts(url: str) -> None:
    """The model declares no `text_pair`, so the server names it; the client adds the inputs of the model."""
    with Client(url) as client:
        assert [tensor.name for tensor in client.metadata("intents_cascade").inputs] == ["text_input"]
        with pytest.raises(InvalidArgument, match="model 'intents_cascade' has no input 'text_pair'; its inputs are"):
            client.classify("intents_cascade", "hi", pair="there")
        assert client.classify("intents_cascade", "hi").label is not None
