"""Asyncio client with the methods of `Client`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from types import TracebackType
from typing import Self, TypeVar, Unpack, overload

from tidal_client.aio_row_methods import AsyncRowMethods
from tidal_client.chatting import AsyncChatCalls
from tidal_client.client import DEFAULT_TIMEOUT_S
from tidal_client.codec import InferRequest, image_inputs, infer_request, read_classifications
from tidal_client.errors import InvalidArgument, RequestError
from tidal_client.generation import SEND_A_LIST, Prompts, are_texts, check_single, generation_request, read_generated
from tidal_client.options import CallOptions
from tidal_client.results import Array, Classification, Generated, ModelMetadata
from tidal_client.retrying import Attempts, attempts, checked_retries, stream_with_retries_async, with_retries_async
from tidal_client.row_runs import CONCURRENCY, checked_concurrency, run_rows_async
from tidal_client.rows import RowCall
from tidal_client.tensor_errors import may_be_unknown_tensor, unknown_tensor_error
from tidal_client.transports import AsyncTransport
from tidal_client.transports.addresses import connect_async, parse_urls

T = TypeVar("T")
Row = TypeVar("Row")


class AsyncClient(AsyncRowMethods, AsyncChatCalls):
    """Asyncio client of one server or several, for the event loop of its first call.

    Any number of calls may be in flight. Methods, arguments and errors are those of `Client`. Over gRPC, cancelling a
    task cancels its request on the server too, queued or running. Over HTTP, the server completes the request.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: int = 0,
        concurrency: int = CONCURRENCY,
    ) -> None:
        """Create a client; see `Client`."""
        self._concurrency = checked_concurrency(concurrency)
        self._max_rows: dict[str, int] = {}
        self._addresses = parse_urls(url)
        self._transport_retries = checked_retries(retries)
        # The transport to several servers retries by itself.
        self._retries = self._transport_retries if len(self._addresses) == 1 else 0
        self._timeout_s = timeout_s
        self._closed = False

    @cached_property
    def _transport(self) -> AsyncTransport:
        if self._closed:
            raise RuntimeError("this client is closed")
        # Both libraries bind to the running event loop, which may not exist when the client is created.
        return connect_async(self._addresses, self._transport_retries, self._max_rows.clear)

    async def classify_image(
        self, model: str, image: bytes, *, outputs: Sequence[str] | None = None, **options: Unpack[CallOptions]
    ) -> Classification:
        """Classify one encoded image; see `Client.classify_image`."""
        request = infer_request(model, image_inputs(image), outputs, options)
        return read_classifications(await self._infer(request), 1)[0]

    @overload
    async def generate(self, model: str, prompt: str | Sequence[int], **options: Unpack[CallOptions]) -> Generated: ...

    @overload
    async def generate(
        self, model: str, prompt: list[str] | tuple[str, ...], **options: Unpack[CallOptions]
    ) -> list[Generated]: ...

    async def generate(
        self, model: str, prompt: Prompts, **options: Unpack[CallOptions]
    ) -> Generated | list[Generated]:
        """Generate text from a prompt and return it when it is complete; see `Client.generate`."""
        several = are_texts(prompt)
        if not several:
            check_single(options, SEND_A_LIST)
        request = generation_request(model, prompt, stream=False, options=options)
        generated = await self._whole(request)
        return generated if several else generated[0]

    def generate_stream(
        self, model: str, prompt: Prompts, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Generated, None]:
        """Generate text from a prompt and yield its parts as they arrive; see `Client.generate_stream`.

        Cancelling the task or calling `aclose` cancels the request. An iterator that is abandoned without `aclose`
        holds its request until it is garbage-collected.
        """
        request = generation_request(model, prompt, stream=True, options=options)
        return self._parts(request)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] | None = None,
        **options: Unpack[CallOptions],
    ) -> dict[str, Array]:
        """Send one request of arrays; see `Client.infer`."""
        request = infer_request(model, inputs, outputs, options)
        return await self._infer(request)

    async def ready(self, model: str | None = None, *, timeout_s: float | None = None) -> bool:
        """Whether a model or the server is ready to serve; see `Client.ready`."""
        return await self._transport.ready(model, self._timeout(timeout_s))

    async def metadata(self, model: str, *, timeout_s: float | None = None) -> ModelMetadata:
        """Return a model's versions, inputs and outputs; see `Client.metadata`."""
        tries = Attempts(self._retries, self._timeout(timeout_s))
        return await with_retries_async(tries, lambda: self._transport.metadata(model, self._timeout(tries.left_s)))

    async def max_rows(self, model: str, *, timeout_s: float | None = None) -> int:
        """Return the maximum number of rows of a request to a model; see `Client.max_rows`."""
        known = self._max_rows.get(model)
        if known is None:
            tries = Attempts(self._retries, self._timeout(timeout_s))
            known = await with_retries_async(
                tries, lambda: self._transport.max_rows(model, self._timeout(tries.left_s))
            )
            self._max_rows[model] = known
        return known

    async def close(self) -> None:
        """Close the connections; later calls raise `RuntimeError`."""
        self._closed = True
        if "_transport" in self.__dict__:
            await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _timeout(self, timeout_s: float | None) -> float:
        if self._closed:
            raise RuntimeError("this client is closed")
        return self._timeout_s if timeout_s is None else timeout_s

    async def _run_rows(self, call: RowCall[Row]) -> list[Row]:
        """Send the requests of a call with rows; the model's maximum number of rows is read again after an error."""
        try:
            return await run_rows_async(
                call,
                lambda: self.max_rows(call.whole.model, timeout_s=call.whole.timeout_s),
                self._infer,
                self._concurrency,
            )
        except InvalidArgument:
            self._max_rows.pop(call.whole.model, None)
            raise

    async def _infer(self, request: InferRequest) -> dict[str, Array]:
        return await self._call(request, self._transport.infer)

    async def _whole(self, request: InferRequest) -> list[Generated]:
        async def whole(each: InferRequest, left_s: float) -> list[dict[str, Array]]:
            return [outputs async for outputs in self._transport.stream(each, left_s)]

        (outputs,) = await self._call(request, whole)
        return read_generated(outputs)

    async def _parts(self, request: InferRequest) -> AsyncGenerator[Generated, None]:
        tries = attempts(self._retries, self._timeout(request.timeout_s), request)
        responses = stream_with_retries_async(
            tries, request, lambda each: self._transport.stream(each, self._timeout(request.timeout_s))
        )
        try:
            async with aclosing(responses):
                async for outputs in responses:
                    for part in read_generated(outputs):
                        yield part
        except RequestError as error:
            raise await self._with_expected_tensors(error, request) from None

    async def _call(self, request: InferRequest, send: Callable[[InferRequest, float], Awaitable[T]]) -> T:
        """Send a request, with retries."""
        tries = attempts(self._retries, self._timeout(request.timeout_s), request)
        try:
            return await with_retries_async(tries, lambda: send(tries.request(request), self._timeout(tries.left_s)))
        except RequestError as error:
            raise await self._with_expected_tensors(error, request) from None

    async def _with_expected_tensors(self, error: RequestError, request: InferRequest) -> RequestError:
        """Return the error; if the request named unknown tensors, one that names the model's."""
        if not may_be_unknown_tensor(error):
            return error
        try:
            return unknown_tensor_error(error, request, await self._transport.metadata(request.model, self._timeout_s))
        except RequestError:
            return error
