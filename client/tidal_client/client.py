"""Blocking client."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack, overload

from tidal_client.codec import InferRequest, chunks, image_inputs, read_classifications
from tidal_client.errors import RequestError
from tidal_client.generation import Prompts, are_texts, generation_request, read_generated
from tidal_client.input_errors import may_be_unknown_input, unknown_input_error
from tidal_client.options import Options, request_parameters
from tidal_client.results import Array, Classification, Generated, ModelMetadata
from tidal_client.retrying import Attempts, attempts, checked_retries, stream_with_retries, with_retries
from tidal_client.transports import parse_url

#: Default timeout of a call, in seconds.
DEFAULT_TIMEOUT_S: Final = 30.0

T = TypeVar("T")


class Client:
    """Blocking client of one server; safe to share between threads.

    A blocking call cannot be cancelled from another thread. Limit it with `timeout_s` (over gRPC the request is then
    cancelled on the server too), or use `AsyncClient`.

    Every method raises a `RequestError`: `InvalidArgument`, `NotFound`, `Unavailable`, `Cancelled`, `Unsupported`,
    `ServerError`, `DeadlineExceeded` after `timeout_s`, or `ConnectionFailed`.
    """

    def __init__(self, url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, retries: int = 0) -> None:
        """Create a client; it connects on the first call.

        Args:
            url: ``grpc://HOST:PORT`` or ``http://HOST:PORT``.
            timeout_s: Default timeout of a call in seconds, retries included.
            retries: Maximum number of retries of a request that ends in `Unavailable` or `ConnectionFailed`. Pauses
                double from 0.2 s up to 5 s, minus a random part of up to half. Retries stay within `timeout_s` and
                `latency_ms`, and a stream that has begun is not retried.

        Raises:
            InvalidArgument: The URL is malformed, or `retries` is not a whole number of at least 0.
        """
        self._retries = checked_retries(retries)
        self._transport = parse_url(url).connect()
        self._timeout_s = timeout_s
        self._closed = False

    def classify(
        self,
        model: str,
        text: str,
        *,
        pair: str | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Classification:
        """Classify one text.

        Args:
            model: Name of the model.
            text: Text to classify.
            pair: Second text, for models that compare two texts.
            outputs: Names of the outputs to request; None: all.
            request_id: Id of the request in the server's logs.
            timeout_s: Timeout in seconds; None: the client's.
            options: Request options, see `Options`.
        """
        pairs = None if pair is None else [pair]
        return self.classify_many(
            model, [text], pairs=pairs, outputs=outputs, request_id=request_id, timeout_s=timeout_s, **options
        )[0]

    def classify_many(
        self,
        model: str,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> list[Classification]:
        """Classify texts in requests of up to 64, one request after the other.

        Args:
            model: Name of the model.
            texts: Texts to classify; an empty list sends no request.
            pairs: Second texts, one per text.
            outputs: See `classify`.
            request_id: Id of every request in the server's logs.
            timeout_s: Timeout of each request in seconds; None: the client's.
            options: Request options of each request; a deadline counts from the arrival of each.

        Returns:
            One result per text, in order. An error for one text fails the whole call.
        """
        parameters = request_parameters(options)
        results: list[Classification] = []
        for inputs in chunks(texts, pairs):
            request = InferRequest(model, inputs, outputs, parameters, request_id)
            answer = self._infer(request, timeout_s)
            results += read_classifications(answer, len(inputs["text_input"]))
        return results

    def classify_image(
        self,
        model: str,
        image: bytes,
        *,
        outputs: Sequence[str] | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Classification:
        """Classify one image.

        Args:
            model: Name of the model.
            image: Content of a JPEG, PNG or WebP file.
            outputs: See `classify`.
            request_id: See `classify`.
            timeout_s: See `classify`.
            options: See `classify`.
        """
        request = InferRequest(model, image_inputs(image), outputs, request_parameters(options), request_id)
        return read_classifications(self._infer(request, timeout_s), 1)[0]

    @overload
    def generate(
        self,
        model: str,
        prompt: str | Sequence[int],
        *,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generated: ...

    @overload
    def generate(
        self,
        model: str,
        prompt: list[str] | tuple[str, ...],
        *,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> list[Generated]: ...

    def generate(
        self,
        model: str,
        prompt: Prompts,
        *,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generated | list[Generated]:
        """Generate text from a prompt and return it when it is complete.

        Args:
            model: Name of the model.
            prompt: Text, token ids, or a list of texts to send in one request.
            request_id: See `classify`.
            timeout_s: Timeout for the complete text in seconds; None: the client's.
            options: See `classify`.

        Returns:
            The generated text; for a list of texts, a list of them in the same order.
        """
        request = generation_request(model, prompt, stream=False, request_id=request_id, options=options)
        (outputs,) = self._call(request, timeout_s, lambda each, left_s: list(self._transport.stream(each, left_s)))
        generated = read_generated(outputs)
        return generated if are_texts(prompt) else generated[0]

    def generate_stream(
        self,
        model: str,
        prompt: Prompts,
        *,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generator[Generated, None, None]:
        """Generate text from a prompt and yield its parts as they arrive; the last part has a `finish_reason`.

        Parts of several prompts are interleaved; each has the `index` of its prompt. Beam search yields one part per
        prompt. Leaving the loop or closing the iterator cancels the request.

        Args:
            model: Name of the model.
            prompt: See `generate`.
            request_id: See `classify`.
            timeout_s: Timeout for each part, and for the start of the last retry, in seconds; None: the client's.
            options: See `classify`.
        """
        request = generation_request(model, prompt, stream=True, request_id=request_id, options=options)
        return self._parts(request, self._timeout(timeout_s))

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> dict[str, Array]:
        """Send one request of arrays.

        Args:
            model: Name of the model.
            inputs: Arrays by input name, with the batch axis first if the model has one. Texts are arrays of `bytes`
                or `str`.
            outputs: See `classify`.
            request_id: See `classify`.
            timeout_s: See `classify`.
            options: See `classify`.

        Returns:
            Read-only arrays by output name; texts are arrays of `bytes`.
        """
        request = InferRequest(model, inputs, outputs, request_parameters(options), request_id)
        return self._infer(request, timeout_s)

    def ready(self, model: str | None = None, *, timeout_s: float | None = None) -> bool:
        """Whether a model is ready to serve; an unknown model is not.

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

    def _infer(self, request: InferRequest, timeout_s: float | None) -> dict[str, Array]:
        return self._call(request, timeout_s, self._transport.infer)

    def _call(self, request: InferRequest, timeout_s: float | None, send: Callable[[InferRequest, float], T]) -> T:
        """Send a request, with retries."""
        tries = attempts(self._retries, self._timeout(timeout_s), request)
        try:
            return with_retries(tries, lambda: send(tries.request(request), self._timeout(tries.left_s)))
        except RequestError as error:
            raise self._with_expected_inputs(error, request) from None

    def _parts(self, request: InferRequest, timeout_s: float) -> Generator[Generated, None, None]:
        tries = attempts(self._retries, timeout_s, request)
        responses = stream_with_retries(
            tries, request, lambda each: self._transport.stream(each, self._timeout(timeout_s))
        )
        try:
            with closing(responses):
                for outputs in responses:
                    yield from read_generated(outputs)
        except RequestError as error:
            raise self._with_expected_inputs(error, request) from None

    def _with_expected_inputs(self, error: RequestError, request: InferRequest) -> RequestError:
        """Return the error; if the request had unknown inputs, one that names the model's inputs."""
        if not may_be_unknown_input(error):
            return error
        try:
            return unknown_input_error(error, request, self._transport.metadata(request.model, self._timeout_s))
        except RequestError:
            return error
