"""Load of generation requests: one stream per request in one event loop, with token times."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import numpy as np
import numpy.typing as npt

from tidal_client.codec import InferRequest
from tidal_client.errors import RequestError
from tidal_client.generation import CODED_ERRORS
from tidal_client.load.arrivals import Times
from tidal_client.load.loop import Outcomes
from tidal_client.options import Parameter
from tidal_client.results import Array
from tidal_client.retrying import attempts, stream_with_retries_async
from tidal_client.transports import AsyncTransport
from tidal_client.transports.addresses import Address, connect_async


def stream_request(model: str, inputs: Mapping[str, Array], parameters: Mapping[str, Parameter]) -> InferRequest:
    """Return a request for generated text as a stream.

    Args:
        model: Name of the model.
        inputs: `text_input` of shape [1] or `input_ids` of shape [tokens].
        parameters: Options as Triton request parameters.

    Raises:
        InvalidArgument: The model's name is empty.
    """
    return InferRequest(model, {**inputs, "stream": np.array([True])}, None, {**parameters, CODED_ERRORS: True}, "")


class GenerationSender:
    """Sends generation requests and records the times of their tokens.

    Args:
        addresses: Addresses of the server, or of several.
        requests: Requests by number.
        outcomes: Records the end of each request.
        timeout_s: Timeout for each part of a stream, in seconds.
        retries: Maximum number of retries before a stream has begun.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        requests: Sequence[InferRequest],
        outcomes: Outcomes,
        *,
        timeout_s: float,
        retries: int,
    ) -> None:
        self._addresses, self._requests, self._outcomes = addresses, requests, outcomes
        self._timeout_s, self._retries = timeout_s, retries
        self.first: Times = np.full(len(requests), np.nan)
        self.tokens: npt.NDArray[np.intp] = np.zeros(len(requests), np.intp)
        self.resent: npt.NDArray[np.intp] = np.zeros(len(requests), np.intp)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidal-load-streams", daemon=True)
        self._thread.start()
        self._transport = asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()
        # The loop keeps only weak references to tasks.
        self._tasks = set[asyncio.Task[None]]()

    def send(self, number: int) -> None:
        """See `NumberedSender.send`."""
        self._loop.call_soon_threadsafe(self._begin, number)

    def close(self) -> None:
        """See `NumberedSender.close`."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connect(self) -> AsyncTransport:
        # Retries are counted here; attempts at another server after a failed connection are not.
        return connect_async(self._addresses, 0, lambda: None)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.close()

    def _begin(self, number: int) -> None:
        task = self._loop.create_task(self._generate(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _generate(self, number: int) -> None:
        request = self._requests[number]
        sent = 0

        def start(each: InferRequest) -> AsyncGenerator[dict[str, Array], None]:
            nonlocal sent
            self.resent[number], sent = sent, sent + 1
            return self._transport.stream(each, self._timeout_s)

        tries = attempts(self._retries, self._timeout_s, request)
        try:
            async with aclosing(stream_with_retries_async(tries, request, start)) as responses:
                async for outputs in responses:
                    count = outputs["token_ids"].size if "token_ids" in outputs else 0
                    if count and not self.tokens[number]:
                        self.first[number] = self._outcomes.now()
                    self.tokens[number] += count
        except RequestError as error:
            self._outcomes.finish(number, error)
        else:
            self._outcomes.finish(number, None)
