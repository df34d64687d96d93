"""The service of a cascade without a server: fake levels, requests that record their answers, and failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from testing.candidates import candidate, latency
from testing.metrics import Counting
from testing.requests import TextRequest, make_context
from tidal.arlo.embedded import LoadedModel
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import Cancelled, Internal, TidalError
from tidal.manifest import MANIFEST_FILE, FileRecord, TokenizerInfo, sha256_file
from tidal.metrics import Metrics
from tidal.requests import Array, PendingRequest
from tidal.service import ServiceContext
from tidal.tabi.loading import load
from tidal.tabi.manifest import Calibration, Candidate, Level, TabiManifest, Target
from tidal.tabi.parameters import TabiParameters
from tidal.tabi.service import TabiService

MAX_LENGTH = 16
VERSION = 3
OUTPUTS = frozenset({"label", "probabilities", "level", "confidence", "degraded", "input_tokens", "pruned_text"})
# The first word of a text decides whether the first level is confident, not confident, or re-routes by chance.
WORDS = ("sure", "unsure", "perhaps", "keep", "drop", "a", "b", "c", "d", "e", "-", "!", "1", "5", ".")
SURE, UNSURE = (5.0, 0.0), (0.1, 0.0)
PERHAPS = (2.1972246, 0.0)  # a confidence of 0.9, at which half of the queries are re-routed


def write_tokenizer(file: Path, first_id: int = 0) -> Path:
    """Write a tokenizer of whole words whose ids start at `first_id`, which is [PAD]."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    ids = {word: first_id + number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(file))
    return file


def word_id(word: str, first_id: int = 0) -> int:
    return first_id + 4 + WORDS.index(word)


def cascades(*, pruning: float | None = None, three: bool = False) -> list[Candidate]:
    """Return the first level alone, both, the second alone, and a chain of three; they re-route below 0.9."""
    step: dict[str, Any] = {"cutoff": 0.8, "slope": 1000.0}
    found = [
        candidate("small", (0,), score=0.8, mean=1.0),
        candidate("both", (0, 1), score=0.95, mean=3.0, **step),
        candidate("large", (1,), score=0.96, mean=5.0),
    ]
    if three:
        found.append(candidate("three", (0, 1, 2), score=0.97, mean=4.0, **step))
    return [each.model_copy(update={"pruning": pruning if len(each.levels) > 1 else None}) for each in found]


def write_cascade(
    folder: Path,
    candidates: Sequence[Candidate],
    *,
    chosen: int = 1,
    tokenizers: Sequence[int] = (0, 0),
    lengths: Sequence[int] | None = None,
    means_ms: Sequence[float] | None = None,
    **changes: Any,
) -> TabiManifest:
    """Write version `VERSION` of the cascade `c` into a folder.

    Args:
        folder: Folder of the model.
        candidates: Candidates of the cascade.
        chosen: Index of the candidate that serves.
        tokenizers: First id of each level's tokenizer.
        lengths: Maximum length of each level.
        means_ms: Mean latency of each level.
        changes: Other fields of the manifest.
    """
    version_dir = folder / str(VERSION)
    levels, files = [], {}
    for index, first_id in enumerate(tokenizers):
        file = write_tokenizer(version_dir / "tokenizers" / f"{first_id}.json", first_id)
        name = str(file.relative_to(version_dir))
        files[name] = FileRecord(path=name, bytes=file.stat().st_size, sha256=sha256_file(file))
        length = MAX_LENGTH if lengths is None else lengths[index]
        levels.append(
            Level(
                name=f"l{index}",
                model=f"c_l{index}",
                version=index + 1,
                fingerprint=str(index),
                tokenizer=TokenizerInfo(file=name, max_length=length, pad_token_id=first_id, type_ids=True),
                max_length=length,
                attention=index + 1 < len(tokenizers),
                calibration=Calibration(),
                score=0.9,
                latency=latency((index + 1.0) if means_ms is None else means_ms[index]),
            )
        )
    fields: dict[str, Any] = {
        "kind": "tabi",
        "name": "c",
        "created": "2030-01-01T00:00:00+00:00",
        "spec": "c.yaml",
        "fingerprint": "f",
        "libraries": {},
        "files": tuple(files.values()),
        "task": "classification",
        "pairs": False,
        "metric": "accuracy",
        "labels": ("no", "yes"),
        "data": "0",
        "rows": {"calibration": 1, "selection": 1, "report": 1},
        "levels": tuple(levels),
        "candidates": tuple(candidates),
        "target": Target(accuracy=0.5),
        "chosen": chosen,
    }
    manifest = TabiManifest(**{**fields, **changes})
    (version_dir / MANIFEST_FILE).write_text(manifest.model_dump_json())
    return manifest


class Request(TextRequest):
    """A request for all outputs of a classification cascade."""

    def __init__(self, *texts: str, wanted: frozenset[str] = OUTPUTS, **named: Any) -> None:
        super().__init__(*texts, wanted=wanted, **named)


@dataclass
class FakeCall:
    """A call that a level has received."""

    model: str
    version: int
    inputs: dict[str, Array]
    outputs: list[str]
    latency_ms: float | None
    task: str | None

    @property
    def ids(self) -> list[list[int]]:
        """Token ids of the rows, without padding and special tokens."""
        lengths = self.inputs["attention_mask"].sum(1)
        return [row[1 : n - 1].tolist() for row, n in zip(self.inputs["input_ids"], lengths, strict=True)]


class FakeLevels:
    """The levels' models: the first answers by a text's first word, the others are confident of the other class.

    They are models of the server, or with `in_process` models in the cascade's process.
    """

    in_process = False
    threads = 8  # of each level in the cascade's process

    def __init__(self, first_ids: Sequence[int] = (0, 0, 0)) -> None:
        self.calls: list[FakeCall] = []
        self.before: dict[str, Callable[[int], None]] = {}  # by model: called with the number of the call, may raise
        self.instead: dict[str, Callable[[Array], Array]] = {}  # by model: logits of the inputs
        self._first_ids = first_ids
        self._lock = threading.Lock()

    def of(self, model: str) -> list[FakeCall]:
        return [call for call in self.calls if call.model == model]

    def __call__(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        *,
        version: int,
        latency_ms: float | None = None,
        task: str | None = None,
    ) -> dict[str, Array]:
        with self._lock:
            self.calls.append(FakeCall(model, version, dict(inputs), list(outputs), latency_ms, task))
            number = len(self.of(model))
        if model in self.before:
            self.before[model](number)
        ids = inputs["input_ids"]
        first_id = self._first_ids[int(model[-1])]
        if model in self.instead:
            logits = self.instead[model](ids)
        elif model == "c_l0":
            by_word = {word_id("sure", first_id): SURE, word_id("perhaps", first_id): PERHAPS}
            logits = np.array([by_word.get(row[1], UNSURE) for row in ids.tolist()], np.float32)
        else:
            logits = np.tile(np.array([0.0, 3.0], np.float32), (len(ids), 1))
        found = {"logits": logits}
        if "attention_received" in outputs:
            # Every word is important except "drop".
            found["attention_received"] = np.where(ids == word_id("drop", first_id), 0.01, 1.0).astype(np.float32)
            found["attention_received"][inputs["attention_mask"] == 0] = 0
        return {name: found[name] for name in outputs}


class LocalFake:
    """One of `FakeLevels` as a service in the cascade's process, whose threads call it once for each request.

    Args:
        model: Name of the model.
        version: Version of the model.
        levels: Levels to call.
        context: Context that the service is started with.
        replied: Function to call after replies.
    """

    def __init__(
        self, model: str, version: int, levels: FakeLevels, context: ServiceContext, replied: Callable[[], None]
    ) -> None:
        self._model, self._version, self._levels = model, version, levels
        self._replied = replied
        self._context = context
        self._pool = ThreadPoolExecutor(levels.threads)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        raise AssertionError("calls have tokens already")

    def submit_tokens(
        self, requests: Sequence[tuple[PendingRequest, Sequence[TokenRow]]], *, wait: bool = False
    ) -> None:
        for request, rows in requests:
            self._pool.submit(self._guarded, request, rows)

    def close(self, timeout_s: float) -> None:
        self._pool.shutdown(wait=False)

    def _guarded(self, request: PendingRequest, rows: Sequence[TokenRow]) -> None:
        try:
            self._run(request, rows)
        except BaseException as error:
            self._context.failed(error)

    def _run(self, request: PendingRequest, rows: Sequence[TokenRow]) -> None:
        if request.answered:
            return
        if request.cancelled():
            request.fail(Cancelled("the client cancelled the request while it waited"))
            return
        longest = max(len(row.ids) for row in rows)
        inputs = {name: np.zeros((len(rows), longest), np.int64) for name in ("input_ids", "attention_mask")}
        inputs["token_type_ids"] = np.zeros((len(rows), longest), np.int64)
        for index, row in enumerate(rows):
            length = len(row.ids)
            inputs["input_ids"][index, :length] = row.ids
            inputs["attention_mask"][index, :length] = row.mask
            inputs["token_type_ids"][index, :length] = row.type_ids
        began = time.monotonic()
        try:
            outputs = self._levels(
                self._model,
                inputs,
                sorted(request.wanted, reverse=True),
                version=self._version,
                latency_ms=request.options.latency_ms,
            )
        except TidalError as error:
            request.fail(error)
            return
        except Exception as error:
            request.fail(Internal(f"the engine failed: {error}"))
            return
        if request.record is not None:
            request.record.ran(began, time.monotonic())
        request.reply(outputs)
        self._replied()


def holding(event: threading.Event) -> Callable[[int], None]:
    """For `FakeLevels.before`: a call that lasts until an event."""

    def hold(_number: int) -> None:
        event.wait(30)

    return hold


def raising(error: TidalError) -> Callable[[int], None]:
    """For `FakeLevels.before`: a call that fails."""

    def fail(_number: int) -> None:
        raise error

    return fail


@dataclass
class RunningService(Counting):
    """A running service with its metrics and its failures."""

    system = "tabi"
    service: TabiService
    metrics: Metrics
    failures: list[BaseException]

    def submit(self, *requests: Request) -> None:
        self.service.submit(list(requests))


@contextmanager
def running(
    folder: Path, levels: FakeLevels, outputs: frozenset[str] = OUTPUTS, **parameters: Any
) -> Iterator[RunningService]:
    """Run the service of the cascade in a folder; at the end it is closed and must not have failed."""
    metrics, failures = Metrics("tabi"), list[BaseException]()
    context = make_context(
        folder, metrics, model="c", version=VERSION, outputs=outputs, call_model=levels, failures=failures
    )
    with pytest.MonkeyPatch.context() as patch:
        if levels.in_process:
            patch.setattr(
                "tidal.tabi.loading.embedded_levels", lambda _folder, _manifest, _placement, used: tuple(used)
            )
            patch.setattr("tidal.tabi.loading.load_embedded", partial(_load_fake, levels))
        start = load(context, TabiParameters(**parameters))
    service = start(context)
    assert isinstance(service, TabiService)
    try:
        yield RunningService(service, metrics, failures)
    finally:
        service.close(10)
    assert failures == []


def _load_fake(levels: FakeLevels, version_dir: Path, name: str, _log: logging.Logger) -> LoadedModel:
    version = int(version_dir.name)
    return LoadedModel(name, version, MAX_LENGTH, frozenset(), partial(LocalFake, name, version, levels))
