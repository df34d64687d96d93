"""Calls for the next message of a chat, which both clients have."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Final, Unpack

from tidal_client.codec import InferRequest
from tidal_client.generation import Messages, chat_request, check_single
from tidal_client.options import CallOptions
from tidal_client.results import Generated

_STREAM: Final = "use chat_stream, whose parts have the index of their text"


class ChatCalls:
    """Chat calls of `Client`."""

    def chat(
        self, model: str, messages: Messages, *, tools: Messages | None = None, **options: Unpack[CallOptions]
    ) -> Generated:
        """Generate the next message of a chat and return it when it is complete.

        The server renders the messages with the model's own chat template.

        Args:
            model: Name of the model.
            messages: Messages, the oldest first: mappings with `role` and `content`.
            tools: JSON schemas of functions that the assistant may call, passed to the template.
            options: See `classify`; `timeout_s` is the timeout for the complete text.
        """
        check_single(options, _STREAM)
        request = chat_request(model, messages, tools=tools, stream=False, options=options)
        return self._whole(request)[0]

    def chat_stream(
        self, model: str, messages: Messages, *, tools: Messages | None = None, **options: Unpack[CallOptions]
    ) -> Generator[Generated, None, None]:
        """Generate the next message of a chat and yield its parts as they arrive; see `chat` and `generate_stream`."""
        request = chat_request(model, messages, tools=tools, stream=True, options=options)
        return self._parts(request)

    def _whole(self, request: InferRequest) -> list[Generated]:
        raise NotImplementedError

    def _parts(self, request: InferRequest) -> Generator[Generated, None, None]:
        raise NotImplementedError


class AsyncChatCalls:
    """Chat calls of `AsyncClient`."""

    async def chat(
        self, model: str, messages: Messages, *, tools: Messages | None = None, **options: Unpack[CallOptions]
    ) -> Generated:
        """Generate the next message of a chat and return it when it is complete; see `Client.chat`."""
        check_single(options, _STREAM)
        request = chat_request(model, messages, tools=tools, stream=False, options=options)
        return (await self._whole(request))[0]

    def chat_stream(
        self, model: str, messages: Messages, *, tools: Messages | None = None, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Generated, None]:
        """Generate the next message of a chat and yield its parts; see `chat` and `generate_stream`."""
        request = chat_request(model, messages, tools=tools, stream=True, options=options)
        return self._parts(request)

    async def _whole(self, request: InferRequest) -> list[Generated]:
        raise NotImplementedError

    def _parts(self, request: InferRequest) -> AsyncGenerator[Generated, None]:
        raise NotImplementedError
