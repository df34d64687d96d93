"""The blocking client."""

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

#: Seconds a call waits for its answer unless told otherwise: a server that lost a request cannot say so.
DEFAULT_TIMEOUT_S: Final = 30.0

T = TypeVar("T")


class Client:
    """Blocking calls to one server.

    Threads may share a client. A blocking call cannot be cancelled from outside: bound it with `timeout_s`, after
    which gRPC also withdraws the request on the server, or use `AsyncClient`.

    Every method raises a `RequestError`: `InvalidArgument`, `NotFound`, `Unavailable`, `Cancelled`, `Unsupported`,
    `ServerError`, `DeadlineExceeded` after `timeout_s`, or `ConnectionFailed`.
    """

    def __init__(self, url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, retries: int = 0) -> None:
        """Prepare a client; it connects at the first call.

        Args:
            url: ``grpc://HOST:PORT`` or ``http://HOST:PORT``.
            timeout_s: seconds that a call waits for its answer, retries included, unless the call says otherwise.
            retries: how often a request that ends in `Unavailable` or `ConnectionFailed` is sent again, after pauses
                that double from 0.2 s up to 5 s, less up to half of them at random. A request is sent again within
                its `timeout_s` and `latency_ms` only, and not once a stream has begun.

        Raises:
            InvalidArgument: the url is of another form, or `retries` is not a whole number of at least 0.
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
            model: the model's name.
            text: the text.
            pair: second text, for models that compare two.
            outputs: names of the wanted outputs; None asks for all that the model returns.
            request_id: a name for the request in the server's logs.
            timeout_s: seconds to wait for the answer.
            options: options common to Tidal's models, see `Options`.
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
        """Classify texts, 64 to a request, one request after the other.

        Args:
            model: the model's name.
            texts: any number of texts; of none, no request is made.
            pairs: a second text for each.
            outputs: as in `classify`.
            request_id: as in `classify`; all requests carry it.
            timeout_s: seconds to wait for each request's answer.
            options: as in `classify`; they hold for each request, so a deadline starts anew with each.

        Returns:
            One result for each text, in order. A text that the server refuses fails the whole call.
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
            model: the model's name.
            image: content of a JPEG, PNG or WebP file.
            outputs: as in `classify`.
            request_id: as in `classify`.
            timeout_s: as in `classify`.
            options: as in `classify`.
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
        """Generate a text, and wait for all of it.

        Args:
            model: the model's name.
            prompt: a text, token ids, or a list of texts, which are one request.
            request_id: as in `classify`.
            timeout_s: seconds to wait for the whole text.
            options: as in `classify`.

        Returns:
            What was generated; of a list of texts one for each, in their order.
        """
        request = generation_request(model, prompt, stream=False, request_id=request_id, options=options)
        (outputs,) = self._call(request, timeout_s, lambda each, left_s: list(self._transport.stream(each, left_s)))
        found = read_generated(outputs)
        return found if are_texts(prompt) else found[0]

    def generate_stream(
        self,
        model: str,
        prompt: Prompts,
        *,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generator[Generated, None, None]:
        """Generate a text, and give its parts as they come; the last one has a `finish_reason`.

        Parts of several prompts come mixed, each with the `index` of its prompt. With beams a prompt has one part, all
        of its text. To leave the loop, or to close the iterator, withdraws the request.

        Args:
            model: the model's name.
            prompt: as in `generate`.
            request_id: as in `classify`.
            timeout_s: seconds to wait for each part; retries begin within as many seconds of the first attempt.
            options: as in `classify`.
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
        """Send arrays, get arrays.

        Args:
            model: the model's name.
            inputs: arrays by input name, the batch axis first where the model has one. Texts are arrays of `bytes` or
                `str`.
            outputs: as in `classify`.
            request_id: as in `classify`.
            timeout_s: as in `classify`.
            options: as in `classify`.

        Returns:
            Read-only arrays by output name; texts are arrays of `bytes`.
        """
        request = InferRequest(model, inputs, outputs, request_parameters(options), request_id)
        return self._infer(request, timeout_s)

    def ready(self, model: str | None = None, *, timeout_s: float | None = None) -> bool:
        """Whether the model, or the server when none is named, takes requests. An unknown model is not ready."""
        return self._transport.ready(model, self._timeout(timeout_s))

    def metadata(self, model: str, *, timeout_s: float | None = None) -> ModelMetadata:
        """What a model takes and returns."""
        tries = Attempts(self._retries, self._timeout(timeout_s))
        return with_retries(tries, lambda: self._transport.metadata(model, self._timeout(tries.left_s)))

    def close(self) -> None:
        """Close the connection. Calls of other threads end in `Cancelled`; later ones raise `RuntimeError`."""
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
        """Send a request until it is answered or another attempt makes no sense."""
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
        """The error, with what the model takes where the request was of another kind."""
        if not may_be_unknown_input(error):
            return error
        try:
            return unknown_input_error(error, request, self._transport.metadata(request.model, self._timeout_s))
        except RequestError:
            return error
