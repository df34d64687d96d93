"""Calls for the next message of a chat, which both clients have."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Final, Unpack

from tidal_client.codec import InferRequest
from tidal_client.generation import Messages, chat_request, check_single
from tidal_client.options import Options
from tidal_client.results import Generated

_STREAM: Final = "use chat_stream, whose parts have the index of their text"


class ChatCalls:
    """Chat calls of `Client`."""

    def chat(
        self,
        model: str,
        messages: Messages,
        *,
        tools: Messages | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generated:
        """Generate the next message of a chat and return it when it is complete.

        The server renders the messages with the model's own chat template.

        Args:
            model: Name of the model.
            messages: Messages, the oldest first: mappings with `role` and `content`.
            tools: JSON schemas of functions that the assistant may call, passed to the template.
            request_id: See `classify`.
            timeout_s: Timeout for the complete text in seconds; None: the client's.
            options: See `classify`.
        """
        check_single(options, _STREAM)
        request = chat_request(model, messages, tools=tools, stream=False, request_id=request_id, options=options)
        return self._whole(request, timeout_s)[0]

    def chat_stream(
        self,
        model: str,
        messages: Messages,
        *,
        tools: Messages | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generator[Generated, None, None]:
        """Generate the next message of a chat and yield its parts as they arrive; see `chat` and `generate_stream`."""
        request = chat_request(model, messages, tools=tools, stream=True, request_id=request_id, options=options)
        return self._parts(request, timeout_s)

    def _whole(self, request: InferRequest, timeout_s: float | None) -> list[Generated]:
        raise NotImplementedError

    def _parts(self, request: InferRequest, timeout_s: float | None) -> Generator[Generated, None, None]:
        raise NotImplementedError


class AsyncChatCalls:
    """Chat calls of `AsyncClient`."""

    async def chat(
        self,
        model: str,
        messages: Messages,
        *,
        tools: Messages | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generated:
        """Generate the next message of a chat and return it when it is complete; see `Client.chat`."""
        check_single(options, _STREAM)
        request = chat_request(model, messages, tools=tools, stream=False, request_id=request_id, options=options)
        return (await self._whole(request, timeout_s))[0]

    def chat_stream(
        self,
        model: str,
        messages: Messages,
        *,
        tools: Messages | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Generated, None]:
        """Generate the next message of a chat and yield its parts; see `chat` and `generate_stream`."""
        request = chat_request(model, messages, tools=tools, stream=True, request_id=request_id, options=options)
        return self._parts(request, timeout_s)

    async def _whole(self, request: InferRequest, timeout_s: float | None) -> list[Generated]:
        raise NotImplementedError

    def _parts(self, request: InferRequest, timeout_s: float | None) -> AsyncGenerator[Generated, None]:
        raise NotImplementedError
