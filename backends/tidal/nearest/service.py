"""The `nearest` service: answers each request with rows of a query and a text, for a model that reads pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from tidal.errors import InvalidArgument, TidalError
from tidal.nearest.index import TextIndex, nearest, read_index
from tidal.nearest.parameters import MAX_TEXTS, NearestParameters
from tidal.requests import Array, PendingRequest
from tidal.service import Service, ServiceContext
from tidal.serving.endings import model_stops
from tidal.serving.threads import AnswerThread

OUTPUTS = ("query", "text", "similarity", "index")


class NearestService:
    """A thread that searches for one request after the other.

    Args:
        context: Context that the service is started with.
        index: Texts and vectors.
        parameters: Parameters of config.pbtxt.
    """

    def __init__(self, context: ServiceContext, index: TextIndex, parameters: NearestParameters) -> None:
        self._index = index
        self._texts = parameters.texts
        self._seconds = context.metrics.histogram("search_seconds", "Time to search all texts")
        self._closing = False
        self._worker: AnswerThread[PendingRequest] = AnswerThread(context, self._answer)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Queue requests."""
        for request in requests:
            if self._closing:
                request.fail(model_stops())
            else:
                self._worker.put(request)

    def close(self, timeout_s: float) -> None:
        """Answer what is queued, then end the thread."""
        self._closing = True
        self._worker.close(time.monotonic() + timeout_s)

    def _answer(self, request: PendingRequest) -> None:
        if request.answered:  # by the boundary, after its deadline
            return
        try:
            outputs = self._search(request)
        except TidalError as error:
            request.fail(error)
        else:
            request.reply(outputs)

    def _search(self, request: PendingRequest) -> dict[str, Array]:
        query, vectors = request.inputs["embedding"], self._index.vectors
        text, count = request.inputs["text_input"], request.options.top_k
        if count is not None and not 1 <= count <= MAX_TEXTS:
            raise InvalidArgument(f"request option 'top_k' is {count}; this model accepts 1 to {MAX_TEXTS} texts")
        expected = (1, vectors.shape[1])
        if query.shape != expected or not np.isfinite(query).all():
            raise InvalidArgument(
                f"embedding has shape {list(query.shape)}; expected finite numbers of shape {list(expected)}: one "
                "query, embedded by the model that embedded the texts"
            )
        started = time.perf_counter()
        rows, similarities = nearest(vectors, query[0], self._texts if count is None else count)
        self._seconds.observe(time.perf_counter() - started)
        return {
            "query": np.repeat(text.reshape(1, 1), len(rows), axis=0),
            "text": self._index.texts[rows][:, None],
            "similarity": similarities[:, None],
            "index": rows.astype(np.int32)[:, None],
        }


def load(context: ServiceContext, parameters: NearestParameters) -> Callable[[ServiceContext], Service]:
    """Read the texts and return a function that starts a service on them.

    Args:
        context: Context of the model that is loaded.
        parameters: Parameters of config.pbtxt.

    Raises:
        InvalidArgument: The files or config.pbtxt are not accepted.
    """
    context.check_outputs(OUTPUTS)
    index = read_index(context.version_dir)
    return lambda fresh: NearestService(fresh, index, parameters)
