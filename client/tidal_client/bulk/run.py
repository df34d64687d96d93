"""The run of `tidal embed`: windows of texts as requests of similar lengths, several in flight, written as they end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np

from tidal_client.bulk import output, state
from tidal_client.bulk.state import BulkSettings, Progress
from tidal_client.bulk.texts import TextFile
from tidal_client.client import Client
from tidal_client.encoder_results import EmbeddingType
from tidal_client.errors import InvalidArgument
from tidal_client.options import Options
from tidal_client.results import Array
from tidal_client.rows import Rows, split_rows

# Texts that are sorted by length together, limited in number and bytes; they are in memory.
_WINDOW_TEXTS: Final = 4096
_WINDOW_BYTES: Final = 8 << 20
_SAVE_EVERY_S: Final = 2.0
_ROW = re.compile(r"^texts\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Part:
    """Texts of one request, with their indices in the file."""

    number: int
    texts: list[str]
    rows: Rows


@dataclass(frozen=True, slots=True)
class Paths:
    """Files of a run: the output, and beside it the incomplete array and the state."""

    out: Path

    @property
    def partial(self) -> Path:
        """Array that is being written."""
        return self.out.with_name(f"{self.out.name}.partial")

    @property
    def state(self) -> Path:
        """State of the run."""
        return self.out.with_name(f"{self.out.name}.state.json")


def embed_file(
    client: Client,
    texts: TextFile,
    settings: BulkSettings,
    paths: Paths,
    *,
    concurrency: int,
    report: Callable[[int], None],
) -> tuple[int, ...]:
    """Embed the texts of a file, or what an interrupted run of the same settings has left.

    Args:
        client: Client of the server.
        texts: Texts to embed.
        settings: Model, options and identity of the texts.
        paths: Files to write.
        concurrency: Maximum number of requests in flight.
        report: Called with the number of texts whose vectors were written just now, or earlier by an interrupted run.

    Returns:
        Shape of the array.

    Raises:
        RequestError: A request failed; the state is saved, and the same call continues.
        KeyboardInterrupt: The run was interrupted; likewise.
        OSError: The output cannot be written.
    """
    progress = state.load(paths.state, settings)
    limit = client.max_rows(settings.model)
    if progress is not None and progress.max_rows > limit:
        raise InvalidArgument(
            f"{paths.state}: the model accepted {progress.max_rows} rows per request then, {limit} now; "
            "delete it to start again"
        )
    array = None if progress is None else output.reopen(paths.partial, settings.texts)
    run = _Run(client, settings, paths, progress or Progress(limit), array, report)
    run.send(parts(texts.read(), run.progress.max_rows), concurrency, texts)
    assert run.array is not None  # a file has at least one text
    shape: tuple[int, ...] = run.array.shape
    run.array = None
    output.finish(paths.partial, paths.out, texts)
    state.remove([paths.state])
    return shape


def parts(texts: Iterable[str], max_rows: int) -> Iterator[Part]:
    """Yield the requests of texts: texts of similar lengths within a window share a request.

    Equal texts and numbers give equal requests.

    Args:
        texts: Texts in the order of the file.
        max_rows: Maximum number of rows of a request.
    """
    number = 0
    for first, window, sizes in _windows(texts):
        for rows in split_rows(sizes, max_rows):
            yield Part(number, [window[row] for row in rows.tolist()], rows + first)
            number += 1


def _windows(texts: Iterable[str]) -> Iterator[tuple[int, list[str], list[int]]]:
    """Yield the index of the first text of each window, its texts, and their bytes."""
    first, window, sizes, held = 0, list[str](), list[int](), 0
    for text in texts:
        window.append(text)
        sizes.append(len(text.encode()))
        held += sizes[-1]
        if len(window) == _WINDOW_TEXTS or held >= _WINDOW_BYTES:
            yield first, window, sizes
            first, window, sizes, held = first + len(window), [], [], 0
    if window:
        yield first, window, sizes


def _named(error: InvalidArgument, part: Part, texts: TextFile) -> InvalidArgument:
    """Return the error of a request with the file's name for a text in place of its index in the request."""
    return InvalidArgument(_ROW.sub(lambda match: texts.name(int(part.rows[int(match[1])])), str(error)))


class _Run:
    """Requests of a run in flight, and what they have written."""

    def __init__(
        self,
        client: Client,
        settings: BulkSettings,
        paths: Paths,
        progress: Progress,
        array: Array | None,
        report: Callable[[int], None],
    ) -> None:
        self._client, self._settings, self._paths, self._report = client, settings, paths, report
        self.progress, self.array = progress, array
        self._saved = time.monotonic()

    def send(self, requests: Iterable[Part], concurrency: int, texts: TextFile) -> None:
        """Send the requests that are not written yet; write each as it ends."""
        with ThreadPoolExecutor(concurrency, "tidal-embed") as pool:
            flying: dict[Future[Array], Part] = {}
            try:
                for part in requests:
                    if part.number in self.progress:
                        self._report(len(part.texts))
                        continue
                    # One request more than are in flight, so that a thread that becomes idle has one.
                    if len(flying) > concurrency:
                        self._collect(flying, texts)
                    flying[pool.submit(self._embed, part.texts)] = part
                while flying:
                    self._collect(flying, texts)
            except BaseException:
                self._client.close()  # ends requests in flight, which may take long
                raise
            finally:
                pool.shutdown(cancel_futures=True)
                self._save_state()

    def _embed(self, texts: list[str]) -> Array:
        settings = self._settings
        found = self._client.embed(
            settings.model,
            texts,
            prompt=settings.prompt,
            dtype=cast(EmbeddingType, settings.dtype),
            **Options(dimensions=settings.dimensions, task=settings.task),
        )
        return found.array

    def _collect(self, flying: dict[Future[Array], Part], texts: TextFile) -> None:
        """Wait for a request and write its vectors; a failed one raises after all that ended with it are written."""
        ended = wait(flying, return_when=FIRST_COMPLETED).done
        for future in sorted(ended, key=lambda future: future.exception() is not None):
            part = flying.pop(future)
            try:
                vectors = future.result()
            except InvalidArgument as error:
                raise _named(error, part, texts) from None
            if self.array is None:
                shape = (self._settings.texts, vectors.shape[1])
                self.array = output.create(self._paths.partial, shape, vectors.dtype)
            self.array[part.rows] = vectors
            self.progress.add(part.number)
            self._report(len(part.texts))
        if time.monotonic() - self._saved > _SAVE_EVERY_S:
            self._save_state()

    def _save_state(self) -> None:
        """Save the state after the vectors that it counts as written."""
        if isinstance(self.array, np.memmap):
            self.array.flush()
            state.save(self._paths.state, self._settings, self.progress)
            self._saved = time.monotonic()
