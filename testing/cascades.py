"""Hand-made cascades of tiny classifiers with random weights, for a real server."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from testing.candidates import candidate, latency
from testing.classifiers import build_classifier
from testing.models import make_tiny_classifier
from testing.once import built_once
from tidal.arlo.manifest import load_arlo_manifest
from tidal.arlo.model import EncoderModel, open_model
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import InvalidArgument
from tidal.manifest import MANIFEST_FILE, FileRecord, sha256_file
from tidal.tabi.equations import confidence, request_key
from tidal.tabi.manifest import Calibration, Candidate, Level, TabiManifest, Target
from tidal.tabi.pruning import kept_words, prune_text
from tidal.tabi.query_route import CascadeAnswer, Route
from tidal.text.words import EncodedWords, WordTokenizer

MAX_LENGTH = 64


LABELS = ("negative", "neutral", "positive")


PRUNING = 0.9


SMALL, LARGE = "c_small", "c_large"


def built_levels(temporary: pytest.TempPathFactory) -> Path:
    """Return a repository with the levels `SMALL` and `LARGE`, built once for all tests of a run; do not change it.

    Args:
        temporary: Factory of temporary folders of this worker.
    """

    def build(folder: Path) -> None:
        outputs = ["logits", "attention_received"]
        for name, layers, seed in ((SMALL, 1, 0), (LARGE, 2, 1)):
            source = make_tiny_classifier(
                folder / f"source-{name}", layers=layers, labels=LABELS, max_position=MAX_LENGTH, seed=seed
            )
            build_classifier(
                folder / "repository", source, name=name, lengths=[16, MAX_LENGTH], max_batch=8, outputs=outputs
            )

    return built_once(temporary, "tabi_levels", build) / "repository"


class OpenLevel:
    """A level's engines in this process, which give its outputs without the server, one query at a time.

    Args:
        version_dir: Folder of the level's version.
        order: Index of each of the cascade's labels in its logits; None: the same order.
    """

    def __init__(self, version_dir: Path, order: Sequence[int] | None = None) -> None:
        self._model: EncoderModel = open_model(version_dir)
        self._order = slice(None) if order is None else list(order)
        manifest = self._model.manifest
        file = version_dir / manifest.tokenizer.file
        self._tokenizer = WordTokenizer(file, manifest.max_length, truncate=True)
        self.vocabulary = file.read_bytes()

    def read(self, texts: Sequence[str]) -> EncodedWords:
        """Return a query's tokens and words."""
        columns = [[text.encode()] for text in texts]
        found = self._tokenizer.encode(columns[0], columns[1] if len(columns) > 1 else None)[0]
        if isinstance(found, InvalidArgument):
            raise found
        return found

    def run(self, query: EncodedWords) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
        """Return the logits [classes] and, if the level gives it, the importance [length]."""
        length = len(query.ids)
        runtime = next(i for i, each in enumerate(self._model.manifest.runtimes) if each.max_length >= length)
        outputs = self._model.run(0, runtime, [TokenRow(query.ids, np.ones(length, np.int64), query.type_ids)])
        received = outputs.get("attention_received")
        return outputs["logits"][0, self._order], None if received is None else received[0, :length]


@dataclass(frozen=True)
class Cascades:
    """A repository with the models of two levels, from which cascades are published to other repositories."""

    repository: Path

    @cached_property
    def open(self) -> tuple[OpenLevel, OpenLevel]:
        return OpenLevel(self.repository / SMALL / "1"), OpenLevel(self.repository / LARGE / "1")

    def cutoff(self, texts: Sequence[str]) -> float:
        """Return a cut-off above the first level's confidence for a third of the texts."""
        small = self.open[0]
        logits = [small.run(small.read([text]))[0] for text in texts]
        return float(np.quantile(confidence(Calibration(), logits), 1 / 3).clip(0.05, 0.95))

    def copy_level(self, target: Path, model: str, name: str | None = None) -> None:
        """Copy a level's model to a repository, where its two newest versions serve."""
        name = name or model
        shutil.copytree(self.repository / model, target / name)
        config = target / name / "config.pbtxt"
        policy = "version_policy { latest { num_versions: 2 } }\n"
        config.write_text(config.read_text().replace(f'"{model}"', f'"{name}"') + policy)

    def publish(
        self,
        target: Path,
        name: str,
        cutoff: float,
        *,
        version: int = 1,
        models: Sequence[str] = (SMALL, LARGE),
        versions: Sequence[int] = (1, 1),
        means_ms: Sequence[float] = (1.0, 2.0),
        pairs: bool = False,
        config: str = "",
    ) -> TabiManifest:
        """Publish a version of a cascade over the levels in a repository."""
        folder = target / name / str(version)
        (folder / "tokenizers").mkdir(parents=True)
        levels = []
        for short, model, of, mean in zip(("small", "large"), models, versions, means_ms, strict=True):
            source = target / model / str(of)
            if not source.is_dir():
                source = self.repository / (SMALL if short == "small" else LARGE) / "1"
            built = load_arlo_manifest(source)
            file = folder / "tokenizers" / f"{short}.json"
            shutil.copy(source / built.tokenizer.file, file)
            info = built.tokenizer.model_copy(update={"file": f"tokenizers/{short}.json"})
            levels.append(
                Level(
                    name=short,
                    model=model,
                    version=of,
                    fingerprint=built.fingerprint,
                    tokenizer=info,
                    max_length=built.max_length,
                    attention=True,
                    calibration=Calibration(),
                    score=0.9,
                    latency=latency(mean),
                )
            )
        manifest = TabiManifest(
            kind="tabi",
            name=name,
            created="2030-01-01T00:00:00+00:00",
            spec="c.yaml",
            fingerprint="f",
            libraries={},
            files=tuple(
                FileRecord(path=f"tokenizers/{path.name}", bytes=path.stat().st_size, sha256=sha256_file(path))
                for path in sorted((folder / "tokenizers").iterdir())
            ),
            task="classification",
            pairs=pairs,
            metric="accuracy",
            labels=LABELS,
            data="0",
            rows={"calibration": 1, "selection": 1, "report": 1},
            levels=tuple(levels),
            candidates=candidates(cutoff),
            target=Target(accuracy=0.9),
            chosen=1,
        )
        (folder / MANIFEST_FILE).write_text(manifest.model_dump_json())
        (target / name / "config.pbtxt").write_text(config or CONFIG + (PAIR if pairs else ""))
        return manifest

    def route_offline(
        self, manifest: TabiManifest, version: int, texts: Sequence[str], request_id: str, row: int
    ) -> RoutedAnswer:
        """See `route_offline`; the levels are those of this repository."""
        return route_offline(manifest, self.open, version, texts, request_id, row)


@dataclass(frozen=True)
class RoutedAnswer:
    """The answer to a query, and the texts that the last level has read."""

    answer: CascadeAnswer
    read: tuple[str, ...]


def route_offline(
    manifest: TabiManifest, levels: Sequence[OpenLevel], version: int, texts: Sequence[str], request_id: str, row: int
) -> RoutedAnswer:
    """Compute one query's route through the chosen candidate; every level tokenises its texts again."""
    chosen = manifest.candidates[manifest.chosen]
    key = request_key(request_id, [text.encode() for text in texts])
    route = Route(manifest, chosen, key, row, version, last_level=len(manifest.levels) - 1)
    read = tuple(texts)
    while True:
        level = levels[route.level]
        query = level.read(read)
        logits, importance = level.run(query)
        if not route.feed(logits):
            return RoutedAnswer(route.answer(), read)
        if chosen.pruning is not None:
            assert importance is not None
            read = prune_text(query.texts, query.spans, kept_words(query, importance, chosen.pruning))


def candidates(cutoff: float) -> tuple[Candidate, ...]:
    weights = [[1.0], [0.4, 0.6]]
    both = candidate("both", (0, 1), score=0.95, mean=2.0, cutoff=cutoff, slope=4.0, weights=weights)
    return (
        candidate("small", (0,), score=0.8, mean=1.0),
        both.model_copy(update={"pruning": PRUNING}),
        candidate("large", (1,), score=0.96, mean=3.0),
    )


_OUTPUTS: Mapping[str, Any] = {
    "label": ("STRING", 1),
    "probabilities": ("FP32", -1),
    "level": ("INT32", 1),
    "confidence": ("FP32", 1),
    "degraded": ("BOOL", 1),
    "input_tokens": ("INT32", 1),
    "pruned_text": ("STRING", 1),
}


CONFIG = "\n".join(
    [
        'backend: "tabi"',
        "max_batch_size: 64",
        'input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },',
        '        { name: "text_pair" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]',
        *(
            f'output [ {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }} ]'
            for name, (kind, dims) in _OUTPUTS.items()
        ),
        "dynamic_batching { }\n",
    ]
)


PAIR = 'output [ { name: "pruned_pair" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
