"""Cascades from their build to a real server: three levels, of which one reads differently and one is partitioned, and
regressions; each query's way held against the one that levels in this process give."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import make_tiny_classifier
from tests.tabi.builders.conftest import RUNTIMES, answers_of, values_of
from tests.tabi.conftest import LABELS, PRUNING, OpenLevel, Walked, parameter, walk
from tests.tabi.manifests import candidate
from tidal.manifest import MANIFEST_FILE, load_manifest
from tidal.server.child import RunningServer, tidal_serve
from tidal.tabi.confidence import confidence
from tidal.tabi.manifest import TabiManifest, load_tabi_manifest
from tidal_builders.specs import parse_spec
from tidal_builders.tabi.build import build_tabi
from tidal_builders.tabi.spec import TabiSpec
from tidal_builders.texts import make_texts
from tidal_client import Client

pytestmark = pytest.mark.server

MAX_LENGTH = 64
# Whole for all levels, even where each letter is a token.
TEXTS = [text for text in make_texts(400, seed=11) if len(text) <= MAX_LENGTH - 2][:60]
PARTITIONED = {"placement": "partitioned", "slo_ms": 2000, "lengths": [16, MAX_LENGTH], "max_batch": 1}


def read_differently(model: Path) -> None:
    """Give a model's tokenizer fewer whole words and other numbers, so that it reads more tokens of a text."""
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    ids = content["model"]["vocab"]
    pieces = [piece for piece in ids if not piece.startswith("[")]
    turned = dict(zip(pieces, [ids[piece] for piece in reversed(pieces)], strict=True))
    words = [piece for piece in pieces if len(piece) > 2 and not piece.startswith("##")]
    gone = set(random.Random(0).sample(words, len(words) // 2))
    content["model"]["vocab"] = {piece: turned.get(piece, ids[piece]) for piece in ids if piece not in gone}
    file.write_text(json.dumps(content))


@dataclass(frozen=True)
class Cascade:
    """A cascade in a repository: one candidate of it, and its levels in this process."""

    name: str
    repository: Path
    manifest: TabiManifest
    levels: list[OpenLevel]

    def walk(self, number: int) -> Walked:
        return walk(self.manifest, self.levels, 1, [TEXTS[number]], f"q{number}", 0)

    def with_candidate(self, name: str, *, config: str = "") -> Cascade:
        """The same levels under another name, all of them in turn: at each about half of the queries go on."""
        first = self.levels[0]
        logits = [first.run(first.read([text]))[0] for text in TEXTS]
        sure = confidence(self.manifest.levels[0].calibration, logits)
        cutoff = float(np.clip(np.quantile(sure, 0.2) - 0.02, 0.02, 0.9))
        weights = [[1.0], [0.4, 0.6], [0.2, 0.3, 0.5]][: len(self.levels)]
        chosen = candidate(name, range(len(self.levels)), cutoff=cutoff, slope=1.0, weights=weights)
        chosen = chosen.model_copy(update={"pruning": PRUNING})
        manifest = self.manifest.model_copy(update={"name": name, "candidates": (chosen,), "chosen": 0})
        folder = self.repository / name
        shutil.copytree(self.repository / self.name / "1", folder / "1")
        (folder / "1" / MANIFEST_FILE).write_text(manifest.model_dump_json())
        text = (self.repository / self.name / "config.pbtxt").read_text()
        (folder / "config.pbtxt").write_text(text.replace(f'name: "{self.name}"', f'name: "{name}"') + config)
        return Cascade(name, self.repository, manifest, self.levels)


def build(folder: Path, name: str, models: dict[str, Path], truth: Sequence[str | float], **last: object) -> Cascade:
    """A cascade as `tidal build` makes it, `last` being options of its last level."""
    texts = make_texts(len(truth), seed=12)
    data = folder / f"{name}.tsv"
    data.write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in zip(texts, truth, strict=True)))
    levels: list[dict[str, object]] = [
        {"name": level, "model": str(model), "runtimes": RUNTIMES} for level, model in models.items()
    ]
    levels[-1]["runtimes"] = last or RUNTIMES
    spec = parse_spec(
        {"kind": "tabi", "name": name, "levels": levels, "data": str(data), "target": {"latency_ms": 1000}}, name
    )
    assert isinstance(spec, TabiSpec)
    repository = folder / "repository"
    report = build_tabi(spec, repository)
    assert report.outcome == "published", report.reasons
    manifest = load_tabi_manifest(repository / name / "1")
    opened = [OpenLevel(repository / level.model / str(level.version), level.order) for level in manifest.levels]
    return Cascade(name, repository, manifest, opened)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


@pytest.fixture(scope="module")
def classes(folder: Path) -> Cascade:
    """`middle` has a tokenizer of its own, `large` the labels in another order, and its runtimes apart."""
    models = {
        "small": make_tiny_classifier(folder / "small", layers=1, hidden=32, labels=LABELS, max_position=MAX_LENGTH),
        "middle": make_tiny_classifier(
            folder / "middle", layers=1, hidden=64, labels=LABELS, max_position=MAX_LENGTH, seed=1
        ),
        "large": make_tiny_classifier(folder / "large", labels=LABELS[::-1], max_position=MAX_LENGTH, seed=2),
    }
    read_differently(models["middle"])
    # What the last level answers is the truth: it then is the best.
    return build(folder, "classes", models, answers_of(models["large"], make_texts(80, seed=12)), **PARTITIONED)


@pytest.fixture(scope="module")
def values(folder: Path) -> Cascade:
    models = {
        "small": make_tiny_classifier(folder / "rough", layers=1, hidden=32, labels=["v"], max_position=MAX_LENGTH),
        "large": make_tiny_classifier(folder / "exact", labels=["v"], max_position=MAX_LENGTH, seed=1),
    }
    return build(folder, "values", models, values_of(models["large"], [(text,) for text in make_texts(80, seed=12)]))


@pytest.fixture(scope="module")
def served(classes: Cascade, values: Cascade) -> dict[str, Cascade]:
    found = [
        classes.with_candidate("three"),
        classes.with_candidate("apart", config=parameter("levels", "models")),
        values.with_candidate("regression"),
    ]
    return {each.name: each for each in found}


@pytest.fixture(scope="module")
def walked(served: dict[str, Cascade]) -> Callable[[str], list[Walked]]:
    """The ways of all texts through a cascade, without a server."""
    return lru_cache(lambda name: [served[name].walk(number) for number in range(len(TEXTS))])


@pytest.fixture(scope="module")
def server(served: dict[str, Cascade]) -> Iterator[RunningServer]:
    (repository,) = {each.repository for each in served.values()}
    with tidal_serve(repository, *(part for name in served for part in ("--model", name))) as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: RunningServer) -> str:
    return str(getattr(server, request.param))


def ask(url: str, model: str) -> list[dict[str, Any]]:
    def one(number: int) -> dict[str, Any]:
        text = np.array([[TEXTS[number].encode()]], object)
        return client.infer(model, {"text_input": text}, request_id=f"q{number}")

    with Client(url) as client, ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(len(TEXTS))))


def test_the_levels_are_what_they_are_to_be(classes: Cascade) -> None:
    levels = {level.name: level for level in classes.manifest.levels}
    assert levels["small"].tokenizer.file == levels["large"].tokenizer.file != levels["middle"].tokenizer.file
    assert levels["large"].order == (2, 1, 0)
    built = load_manifest(classes.repository / levels["large"].model / "1")
    assert built.placement == "partitioned"
    read = [len(classes.levels[place].read([TEXTS[0]]).ids) for place in range(3)]
    assert len(set(read)) == 2


@pytest.mark.parametrize("model", ["three", "apart"])
def test_classes(model: str, url: str, walked: Callable[[str], list[Walked]]) -> None:
    for number, (found, wanted) in enumerate(zip(ask(url, model), walked(model), strict=True)):
        assert not found["degraded"].item(), number
        assert found["level"].item() == wanted.answer.level
        assert wanted.answer.label is not None
        assert found["label"].item().decode() == LABELS[wanted.answer.label]
        assert found["pruned_text"].item().decode() == wanted.read[0]
        np.testing.assert_allclose(found["probabilities"][0], wanted.answer.outputs, atol=1e-4)
        assert found["confidence"].item() == pytest.approx(wanted.answer.confidence, abs=1e-4)
    assert {each.answer.level for each in walked(model)} == {1, 2, 3}
    assert any(each.read[0] != text for each, text in zip(walked(model), TEXTS, strict=True))


def test_values(url: str, walked: Callable[[str], list[Walked]]) -> None:
    for found, wanted in zip(ask(url, "regression"), walked("regression"), strict=True):
        assert "label" not in found
        assert not found["degraded"].item()
        assert found["level"].item() == wanted.answer.level
        assert found["pruned_text"].item().decode() == wanted.read[0]
        assert found["value"].item() == pytest.approx(wanted.answer.value, abs=1e-4)
        assert found["confidence"].item() == pytest.approx(wanted.answer.confidence, abs=1e-4)
    assert {each.answer.level for each in walked("regression")} == {1, 2}
