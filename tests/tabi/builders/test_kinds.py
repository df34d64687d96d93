"""Built cascades on a real server: three levels, of which one has another tokenizer and one is partitioned, and
regressions over pairs; each query's route is compared with the one computed in this process."""

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

from testing.candidates import candidate
from testing.cascades import PRUNING, OpenLevel, RoutedAnswer, route_offline
from testing.config import parameter
from testing.models import make_tiny_classifier
from tests.tabi.builders.command import tidal_build
from tests.tabi.builders.conftest import LABELS, Built, short_search, write_spec
from tidal.arlo.manifest import load_arlo_manifest
from tidal.manifest import MANIFEST_FILE
from tidal.server.child import RunningServer, tidal_serve
from tidal.tabi.equations import confidence
from tidal.tabi.manifest import TabiManifest, load_tabi_manifest
from tidal_builders.texts import make_texts
from tidal_client import Client
from tidal_client.errors import InvalidArgument

pytestmark = pytest.mark.server

MAX_LENGTH = 64
_MADE = make_texts(400, seed=11)
# Short enough for all levels, even if each letter is a token.
TEXTS = [(text,) for text in _MADE if len(text) <= MAX_LENGTH - 2][:60]
PAIRS = list(zip(_MADE[:60], _MADE[60:120], strict=True))
SCORE = "score"
# One runtime: each is a process.
PARTITIONED = {"placement": "partitioned", "form": "static", "slo_ms": 2000, "lengths": [MAX_LENGTH]}
Queries = Sequence[tuple[str, ...]]


def change_tokenizer(model: Path) -> None:
    """Remove words of a model's tokenizer and reverse its ids, so that a text has other and more tokens."""
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    ids = content["model"]["vocab"]
    pieces = [piece for piece in ids if not piece.startswith("[")]
    reversed_ids = dict(zip(pieces, [ids[piece] for piece in reversed(pieces)], strict=True))
    words = [piece for piece in pieces if len(piece) > 2 and not piece.startswith("##")]
    removed = set(random.Random(0).sample(words, len(words) // 2))
    content["model"]["vocab"] = {piece: reversed_ids.get(piece, ids[piece]) for piece in ids if piece not in removed}
    file.write_text(json.dumps(content))


@dataclass(frozen=True)
class Cascade:
    """A cascade with one candidate, its levels in this process, and its queries."""

    manifest: TabiManifest
    levels: list[OpenLevel]
    queries: Queries

    def routes(self) -> list[RoutedAnswer]:
        """The routes of the queries, computed without a server."""
        return [
            route_offline(self.manifest, self.levels, 1, query, f"q{number}", 0)
            for number, query in enumerate(self.queries)
        ]


def publish(source: Path, repository: Path, name: str, queries: Queries, config: str = "") -> Cascade:
    """Publish version 1 of a built cascade under another name, in a repository with its levels.

    Its only candidate has all levels; about half of the queries escalate at each of them.
    """
    manifest = load_tabi_manifest(source / "1")
    levels = [OpenLevel(repository / level.model / str(level.version), level.order) for level in manifest.levels]
    logits = [levels[0].run(levels[0].read(query))[0] for query in queries]
    sure = confidence(manifest.levels[0].calibration, logits)
    cutoff = float(np.clip(np.quantile(sure, 0.2) - 0.02, 0.02, 0.9))
    weights = [[1.0], [0.4, 0.6], [0.2, 0.3, 0.5]][: len(levels)]
    chosen = candidate(name, range(len(levels)), cutoff=cutoff, slope=1.0, weights=weights)
    chosen = chosen.model_copy(update={"pruning": PRUNING})
    manifest = manifest.model_copy(update={"name": name, "candidates": (chosen,), "chosen": 0})
    shutil.copytree(source / "1", repository / name / "1")
    (repository / name / "1" / MANIFEST_FILE).write_text(manifest.model_dump_json())
    text = (source / "config.pbtxt").read_text().replace(f'name: "{source.name}"', f'name: "{name}"')
    (repository / name / "config.pbtxt").write_text(text + config)
    return Cascade(manifest, levels, queries)


@pytest.fixture(scope="module")
def repository(models: Path, labelled: Path, rated: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Levels of `rated`, and of a cascade of three, of which `middle` has another tokenizer."""
    folder = tmp_path_factory.mktemp("kinds")
    middle = make_tiny_classifier(folder / "middle", layers=1, labels=LABELS, max_position=MAX_LENGTH, seed=2)
    change_tokenizer(middle)
    levels = [
        {"name": "small", "model": str(models / "small")},
        {"name": "middle", "model": str(middle)},
        {"name": "large", "model": str(models / "large"), "runtimes": PARTITIONED},
    ]
    spec = write_spec(folder / "classes.yaml", models, labelled, name="classes", levels=levels)
    with short_search():
        done = tidal_build(spec, "--repository", folder / "repository")
    assert done.code == 0, done.stderr
    shutil.copytree(rated.repository, folder / "repository", dirs_exist_ok=True)
    # A level as a separate model, whose configuration is completed with the outputs of its task.
    score = folder / "repository" / SCORE
    shutil.copytree(folder / "repository/reviews_small", score)
    (score / "config.pbtxt").write_text(f'name: "{SCORE}"\nbackend: "arlo"\n')
    return folder / "repository"


@pytest.fixture(scope="module")
def served(repository: Path) -> dict[str, Cascade]:
    classes, apart = repository / "classes", parameter("levels", "models")
    truncate = parameter("truncate", "true")  # not all pairs fit
    return {
        "three": publish(classes, repository, "three", TEXTS),
        "apart": publish(classes, repository, "apart", TEXTS, apart),
        "values": publish(repository / "reviews", repository, "values", PAIRS, truncate),
    }


@pytest.fixture(scope="module")
def routed(served: dict[str, Cascade]) -> Callable[[str], list[RoutedAnswer]]:
    return lru_cache(lambda name: served[name].routes())


@pytest.fixture(scope="module")
def server(repository: Path, served: dict[str, Cascade]) -> Iterator[RunningServer]:
    with tidal_serve(repository, *(part for name in (*served, SCORE) for part in ("--model", name))) as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: RunningServer) -> str:
    return str(getattr(server, request.param))


def ask(url: str, model: str, queries: Queries) -> list[dict[str, Any]]:
    def one(number: int) -> dict[str, Any]:
        inputs = {
            name: np.array([[text.encode()]], object)
            for name, text in zip(("text_input", "text_pair"), queries[number], strict=False)
        }
        return client.infer(model, inputs, request_id=f"q{number}")

    with Client(url) as client, ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(len(queries))))


def test_levels_have_the_specified_tokenizers_and_placements(repository: Path, served: dict[str, Cascade]) -> None:
    cascade = served["three"]
    levels = {level.name: level for level in cascade.manifest.levels}
    assert levels["small"].tokenizer.file == levels["large"].tokenizer.file != levels["middle"].tokenizer.file
    assert levels["large"].order == (2, 1, 0)
    assert cascade.manifest.levels[-1].name == "large"
    placements = {name: load_arlo_manifest(repository / level.model / "1").placement for name, level in levels.items()}
    assert placements == {"small": "polymorphic", "middle": "polymorphic", "large": "partitioned"}
    assert len({len(level.read(TEXTS[0]).ids) for level in cascade.levels}) == 2


def test_a_regression_returns_a_score_without_a_label(url: str) -> None:
    texts = {"text_input": np.array([[b"good film"]], object), "text_pair": np.array([[b"good movie"]], object)}
    with Client(url) as client:
        assert client.infer(SCORE, texts, outputs=["logits"])["logits"].shape == (1, 1)
        for output in ("label", "probabilities"):
            with pytest.raises(InvalidArgument, match=f"no output '{output}'; its outputs are logits, score"):
                client.infer(SCORE, texts, outputs=[output])


@pytest.mark.parametrize("model", ["three", "apart"])
def test_classes(model: str, url: str, routed: Callable[[str], list[RoutedAnswer]]) -> None:
    for found, wanted in zip(ask(url, model, TEXTS), routed(model), strict=True):
        assert not found["degraded"].item()
        assert found["level"].item() == wanted.answer.level
        assert wanted.answer.label is not None
        assert found["label"].item().decode() == LABELS[wanted.answer.label]
        assert found["pruned_text"].item().decode() == wanted.read[0]
        np.testing.assert_allclose(found["probabilities"][0], wanted.answer.outputs, atol=1e-4)
        assert found["confidence"].item() == pytest.approx(wanted.answer.confidence, abs=1e-4)
    assert {each.answer.level for each in routed(model)} == {1, 2, 3}
    assert any(each.read != text for each, text in zip(routed(model), TEXTS, strict=True))


def test_values_of_pairs(url: str, routed: Callable[[str], list[RoutedAnswer]]) -> None:
    for found, wanted in zip(ask(url, "values", PAIRS), routed("values"), strict=True):
        assert "label" not in found
        assert not found["degraded"].item()
        assert found["level"].item() == wanted.answer.level
        assert (found["pruned_text"].item().decode(), found["pruned_pair"].item().decode()) == wanted.read
        assert found["value"].item() == pytest.approx(wanted.answer.value, abs=1e-4)
        assert found["confidence"].item() == pytest.approx(wanted.answer.confidence, abs=1e-4)
    assert {each.answer.level for each in routed("values")} == {1, 2}
    assert any(each.read != pair for each, pair in zip(routed("values"), PAIRS, strict=True))
