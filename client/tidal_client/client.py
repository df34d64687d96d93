"""Blocking client."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack, overload

from tidal_client.chatting import ChatCalls
from tidal_client.codec import InferRequest, image_inputs, infer_request, read_classifications
from tidal_client.errors import InvalidArgument, RequestError
from tidal_client.generation import SEND_A_LIST, Prompts, are_texts, check_single, generation_request, read_generated
from tidal_client.options import CallOptions
from tidal_client.results import Array, Classification, Generated, ModelMetadata
from tidal_client.retrying import Attempts, attempts, checked_retries, stream_with_retries, with_retries
from tidal_client.row_methods import RowMethods
from tidal_client.row_runs import CONCURRENCY, checked_concurrency, run_rows
from tidal_client.rows import RowCall
from tidal_client.tensor_errors import may_be_unknown_tensor, unknown_tensor_error
from tidal_client.transports.addresses import connect, parse_urls

#: Default timeout of a call, in seconds.
DEFAULT_TIMEOUT_S: Final = 30.0

T = TypeVar("T")
Row = TypeVar("Row")


class Client(RowMethods, ChatCalls):
    """Blocking client of one server, or of several with the same models; safe to share between threads.

    Lists are sent as requests of up to `max_rows` texts of similar lengths, several at a time; results are in the order
    of the list.

    With several servers, a call goes to the one with the fewest outstanding calls of this client, in turn among equal
    ones. A server that cannot be reached, or whose model is being reloaded, is left out for 0.2 s, doubled with each
    further failure up to 5 s; then one call tries it. A call that ends in `ConnectionFailed`, or for which a server has
    not loaded the model, is sent to the others at once, also without `retries`, but only once more after a connection
    that broke in the middle. A stream that has begun stays where it is.

    A blocking call cannot be cancelled from another thread. Limit it with `timeout_s` (over gRPC the request is then
    cancelled on the server too), or use `AsyncClient`.

    Every method raises a `RequestError`: `InvalidArgument`, `NotFound`, `Unavailable`, `Cancelled`, `Unsupported`,
    `ServerError`, `DeadlineExceeded` after `timeout_s`, or `ConnectionFailed`.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: int = 0,
        concurrency: int = CONCURRENCY,
    ) -> None:
        """Create a client; it connects on the first call.

        Args:
            url: ``grpc://HOST:PORT`` or ``http://HOST:PORT``, or several of them, one per server.
            timeout_s: Default timeout of a call in seconds, retries included.
            retries: Maximum number of retries of a request that ends in `Unavailable` or `ConnectionFailed`. Pauses
                double from 0.2 s up to 5 s, minus a random part of up to half. Retries stay within `timeout_s` and
                `latency_ms`, and a stream that has begun is not retried. With several servers, the first retries go to
                servers that the call has not tried, without a pause.
            concurrency: Maximum number of requests of one list that are in flight.

        Raises:
            InvalidArgument: The URL is malformed, or a number is not whole or too small.
        """
        self._concurrency = checked_concurrency(concurrency)
        self._max_rows: dict[str, int] = {}
        addresses = parse_urls(url)
        self._transport = connect(addresses, checked_retries(retries), self._max_rows.clear)
        # The transport to several servers retries by itself.
        self._retries = checked_retries(retries) if len(addresses) == 1 else 0
        self._timeout_s = timeout_s
        self._closed = False

    def classify_image(
        self, model: str, image: bytes, *, outputs: Sequence[str] | None = None, **options: Unpack[CallOptions]
    ) -> Classification:
        """Classify one image.

        Args:
            model: Name of the model.
            image: Content of a JPEG, PNG or WebP file.
            outputs: See `classify`.
            options: See `classify`.
        """
        request = infer_request(model, image_inputs(image), outputs, options)
        return read_classifications(self._infer(request), 1)[0]

    @overload
    def generate(self, model: str, prompt: str | Sequence[int], **options: Unpack[CallOptions]) -> Generated: ...

    @overload
    def generate(
        self, model: str, prompt: list[str] | tuple[str, ...], **options: Unpack[CallOptions]
    ) -> list[Generated]: ...

    def generate(self, model: str, prompt: Prompts, **options: Unpack[CallOptions]) -> Generated | list[Generated]:
        """Generate text from a prompt and return it when it is complete.

        Args:
            model: Name of the model.
            prompt: Text, token ids, or a list of texts to send in one request.
            options: See `classify`.

        Returns:
            The generated text; for a list of texts, a list of them in the same order, `n` for each.
        """
        several = are_texts(prompt)
        if not several:
            check_single(options, SEND_A_LIST)
        request = generation_request(model, prompt, stream=False, options=options)
        generated = self._whole(request)
        return generated if several else generated[0]

    def generate_stream(
        self, model: str, prompt: Prompts, **options: Unpack[CallOptions]
    ) -> Generator[Generated, None, None]:
        """Generate text from a prompt and yield its parts as they arrive; the last part has a `finish_reason`.

        Parts of several prompts are interleaved; each has the `index` of its prompt. Beam search yields one part per
        prompt. Leaving the loop or closing the iterator cancels the request.

        Args:
            model: Name of the model.
            prompt: See `generate`.
            options: See `classify`.
        """
        request = generation_request(model, prompt, stream=True, options=options)
        return self._parts(request)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] | None = None,
        **options: Unpack[CallOptions],
    ) -> dict[str, Array]:
        """Send one request of arrays.

        Args:
            model: Name of the model.
            inputs: Arrays by input name, with the batch axis first if the model has one. Texts are arrays of `bytes`
                or `str`.
            outputs: See `classify`.
            options: See `classify`.

        Returns:
            Read-only arrays by output name; texts are arrays of `bytes`.
        """
        request = infer_request(model, inputs, outputs, options)
        return self._infer(request)

    def ready(self, model: str | None = None, *, timeout_s: float | None = None) -> bool:
        """Whether a model is ready to serve, at one of several servers; an unknown model is not.

        Args:
            model: Name of the model; None: the server as a whole.
            timeout_s: Timeout in seconds; None: the client's.
        """
        return self._transport.ready(model, self._timeout(timeout_s))

    def metadata(self, model: str, *, timeout_s: float | None = None) -> ModelMetadata:
        """Return a model's versions, inputs and outputs.

        Args:
            model: Name of the model.
            timeout_s: Timeout in seconds, retries included; None: the client's.
        """
        tries = Attempts(self._retries, self._timeout(timeout_s))
        return with_retries(tries, lambda: self._transport.metadata(model, self._timeout(tries.left_s)))

    def max_rows(self, model: str, *, timeout_s: float | None = None) -> int:
        """Return the maximum number of rows of a request to a model, from its configuration; read once per client.

        With several servers it is the smallest of those that can be reached, and read again when another one returns.

        Args:
            model: Name of the model.
            timeout_s: See `metadata`.
        """
        known = self._max_rows.get(model)
        if known is None:
            tries = Attempts(self._retries, self._timeout(timeout_s))
            known = with_retries(tries, lambda: self._transport.max_rows(model, self._timeout(tries.left_s)))
            self._max_rows[model] = known
        return known

    def close(self) -> None:
        """Close the connections. Calls in other threads end in `Cancelled`, later calls raise `RuntimeError`."""
        self._closed = True
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _timeout(self, timeout_s: float | None) -> float:
        if self._closed:
            raise RuntimeError("this client is closed")
        return self._timeout_s if timeout_s is None else timeout_s

    def _run_rows(self, call: RowCall[Row]) -> list[Row]:
        """Send the requests of a call with rows; the model's maximum number of rows is read again after an error."""
        try:
            return run_rows(
                call,
                lambda: self.max_rows(call.whole.model, timeout_s=call.whole.timeout_s),
                self._infer,
                self._concurrency,
            )
        except InvalidArgument:
            self._max_rows.pop(call.whole.model, None)
            raise

    def _infer(self, request: InferRequest) -> dict[str, Array]:
        return self._call(request, self._transport.infer)

    def _call(self, request: InferRequest, send: Callable[[InferRequest, float], T]) -> T:
        """Send a request, with retries."""
        tries = attempts(self._retries, self._timeout(request.timeout_s), request)
        try:
            return with_retries(tries, lambda: send(tries.request(request), self._timeout(tries.left_s)))
        except RequestError as error:
            raise self._with_expected_tensors(error, request) from None

    def _whole(self, request: InferRequest) -> list[Generated]:
        (outputs,) = self._call(request, lambda each, left_s: list(self._transport.stream(each, left_s)))
        return read_generated(outputs)

    def _parts(self, request: InferRequest) -> Generator[Generated, None, None]:
        self._timeout(request.timeout_s)  # A closed client raises here, before the first part is requested.
        return self._stream(request)

    def _stream(self, request: InferRequest) -> Generator[Generated, None, None]:
        tries = attempts(self._retries, self._timeout(request.timeout_s), request)
        responses = stream_with_retries(
            tries, request, lambda each: self._transport.stream(each, self._timeout(request.timeout_s))
        )
        try:
            with closing(responses):
                for outputs in responses:
                    yield from read_generated(outputs)
        except RequestError as error:
            raise self._with_expected_tensors(error, request) from None

    def _with_expected_tensors(self, error: RequestError, request: InferRequest) -> RequestError:
        """Return the error; if the request named unknown tensors, one that names the model's."""
        if not may_be_unknown_tensor(error):
            return error
        try:
            return unknown_tensor_error(error, request, self._transport.metadata(request.model, self._timeout_s))
        except RequestError:
            return error
