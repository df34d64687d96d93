"""New versions of a partitioned model with other labels, outputs and lengths, under HTTP and gRPC traffic."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from testing.models import make_tiny_classifier
from testing.waiting import until
from tests.arlo.test_served import make_texts
from tidal.arlo.manifest import load_arlo_manifest
from tidal.errors import Internal, InvalidArgument
from tidal.repository.allocation import make_allocation, write_allocation
from tidal.repository.config import instance_count
from tidal.repository.entries import ModelEntry
from tidal.repository.names import runtime_model
from tidal.server.allocate import partitioned_model, write_wanted
from tidal.server.change import reload
from tidal.server.child import RunningServer, tidal_serve
from tidal.server.stubs import live_stubs
from tidal_builders.arlo.build import build_arlo
from tidal_builders.arlo.runtimes import restore_runtime_models
from tidal_builders.specs import parse_spec
from tidal_client import AsyncClient, Client, RequestError

pytestmark = pytest.mark.server

LONGEST = 64
LABELS = {"old": ("negative", "neutral", "positive"), "new": ("bad", "fair", "good")}
ATTENTION = ',\n  { name: "attention_received" data_type: TYPE_FP32 dims: [ -1 ] }'


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two classifiers with different weights and labels."""
    folder = tmp_path_factory.mktemp("sources")
    return {
        name: make_tiny_classifier(folder / name, max_position=LONGEST, labels=labels, seed=seed)
        for seed, (name, labels) in enumerate(LABELS.items())
    }


@pytest.fixture(scope="module")
def expected(sources: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """The unmodified models' labels of texts, by source; without texts whose two best labels are close."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    labels: dict[str, dict[str, str]] = {name: {} for name in sources}
    for name, source in sources.items():
        model = AutoModelForSequenceClassification.from_pretrained(source).eval()
        tokenizer = AutoTokenizer.from_pretrained(source)
        for text in make_texts(96, seed=9):
            with torch.inference_mode():
                logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
            first, second = logits.topk(2).values
            if first - second > 0.05:
                labels[name][text] = LABELS[name][int(logits.argmax())]
    clear = [text for text in labels["old"] if text in labels["new"]]
    assert len(clear) > 32
    return {name: {text: results[text] for text in clear} for name, results in labels.items()}


def build(repository: Path, source: Path, lengths: list[int], *, attention: bool) -> None:
    outputs = ["logits", *(["attention_received"] if attention else [])]
    spec = {"kind": "arlo", "name": "tiny", "model": str(source), "lengths": lengths, "max_batch": 1}
    spec |= {"outputs": outputs, "placement": "partitioned", "slo_ms": 2000}
    build_arlo(parse_spec(spec, "test"), repository, spec_file=Path("tiny.yaml"), force=True)
    # An existing config.pbtxt is kept, so its outputs are edited as an operator does.
    config = repository / "tiny" / "config.pbtxt"
    text = config.read_text().replace(ATTENTION, "")
    if attention:
        text = re.sub(r'(name: "max_length" [^}]*\})', lambda found: found[1] + ATTENTION, text)
    config.write_text(text)


@pytest.fixture(scope="module")
def repository(sources: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` from the old source; its allocation has two instances of the middle runtime."""
    folder = tmp_path_factory.mktemp("changed") / "models"
    build(folder, sources["old"], [16, 32, LONGEST], attention=True)
    write_allocation(folder / "tiny", make_allocation({16: 1, 32: 2, LONGEST: 1}))
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with tidal_serve(repository) as running:
        yield running


class Traffic:
    """Sends queries over HTTP and gRPC, four each at a time, while a block runs; counts answers by source."""

    def __init__(self, server: RunningServer, expected: Mapping[str, Mapping[str, str]]) -> None:
        self.answered: Counter[str] = Counter()
        self.lengths: Counter[int | None] = Counter()
        self.failures: list[str] = []
        self._expected = expected
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(url,)) for url in (server.grpc, server.http)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        assert self.continues()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def continues(self) -> bool:
        """Wait for a hundred more answers; return whether they arrive."""
        aim = self.answered.total() + 100
        return until(lambda: self.answered.total() >= aim)

    def _ask(self, url: str) -> None:
        asyncio.run(self._clients(url))

    async def _clients(self, url: str) -> None:
        texts = list(self._expected["old"])
        async with AsyncClient(url, timeout_s=40) as client:

            async def one(first: int) -> None:
                position = first
                while not self._done.is_set():
                    text, position = texts[position % len(texts)], position + 7
                    try:
                        answer = await client.classify("tiny", text, outputs=["label", "max_length"])
                    except RequestError as error:
                        self.failures.append(f"{type(error).__name__}: {error}")
                        continue
                    results = [name for name, labels in self._expected.items() if labels[text] == answer.label]
                    self.answered.update(results)
                    self.lengths[answer.max_length] += 1
                    if not results:
                        self.failures.append(f"'{text}' is {answer.label}")

            await asyncio.gather(*(one(first) for first in range(4)))


def serving(server: RunningServer) -> dict[str, list[int]]:
    """Return the versions that serve, of `tiny` and its runtime models."""
    found: dict[str, list[int]] = {}
    for row in server.control.index():
        if row.state == "READY":
            found.setdefault(row.name, []).append(row.version)
    return found


def instances(server: RunningServer, version: int, lengths: list[int]) -> dict[int, int]:
    """Return the configured instances of the runtime models, by length."""
    return {n: instance_count(server.control.config(runtime_model("tiny", n), version)) for n in lengths}


def only(version: int, lengths: list[int]) -> dict[str, list[int]]:
    return {name: [version] for name in ("tiny", *(runtime_model("tiny", n) for n in lengths))}


def stub_versions(server: RunningServer) -> set[int]:
    return {stub.version for stub in live_stubs(server.state.server_pid)}


def test_other_labels_and_fewer_outputs(
    server: RunningServer, repository: Path, sources: Mapping[str, Path], expected: Mapping[str, Mapping[str, str]]
) -> None:
    lengths = [16, 32, LONGEST]
    build(repository, sources["new"], lengths, attention=False)
    with Traffic(server, expected) as traffic:
        assert set(traffic.answered) == {"old"}
        results = reload(server.control, repository, "tiny")
        assert traffic.continues()
    assert traffic.failures == []
    assert set(traffic.answered) == {"old", "new"}
    assert results.splitlines()[0] == "tiny: version 2 serves now, version 1 before"
    assert serving(server) == only(2, lengths)
    assert instances(server, 2, lengths) == {16: 1, 32: 2, LONGEST: 1}
    assert until(lambda: stub_versions(server) == {2})
    with Traffic(server, expected) as traffic:
        pass
    assert (set(traffic.answered), traffic.failures) == ({"new"}, [])


def test_other_lengths_and_more_outputs(
    server: RunningServer, repository: Path, sources: Mapping[str, Path], expected: Mapping[str, Mapping[str, str]]
) -> None:
    lengths = [24, LONGEST]
    build(repository, sources["old"], lengths, attention=True)
    with Traffic(server, expected) as traffic:
        with pytest.raises(InvalidArgument, match="tidal models allocate tiny 24=COUNT 64=COUNT"):
            reload(server.control, repository, "tiny")
        write_wanted(repository, partitioned_model(repository, "tiny"), {24: 2, LONGEST: 1})
        assert traffic.continues()
        assert set(traffic.answered) == {"new"}
        results = reload(server.control, repository, "tiny")
        assert traffic.continues()
    assert traffic.failures == []
    assert set(traffic.answered) == {"old", "new"}
    assert set(traffic.lengths) == {16, 24, 32, LONGEST}
    assert results.splitlines()[-2:] == ["  tiny_len16: unloaded", "  tiny_len32: unloaded"]
    assert serving(server) == only(3, lengths)
    assert instances(server, 3, lengths) == {24: 2, LONGEST: 1}
    assert until(lambda: stub_versions(server) == {3})
    with Client(server.grpc) as client:
        assert len(client.classify("tiny", "good song").other["attention_received"]) == 4


def test_a_version_that_does_not_load(
    server: RunningServer, repository: Path, sources: Mapping[str, Path], expected: Mapping[str, Mapping[str, str]]
) -> None:
    lengths = [24, LONGEST]
    build(repository, sources["new"], lengths, attention=True)
    folder = repository / runtime_model("tiny", LONGEST) / "4"
    weights = next((folder / "engines").rglob("*.bin"))
    weights.unlink()  # it is a hard link to the front's file
    weights.write_bytes(b"x")
    with Traffic(server, expected) as traffic:
        for _ in range(2):
            with pytest.raises(Internal, match=r"'tiny_len64' does not load: .* differs .*; version 3 keeps serving"):
                reload(server.control, repository, "tiny")
        assert serving(server) == only(3, lengths)
        assert until(lambda: stub_versions(server) == {3})
        assert traffic.continues()
        assert set(traffic.answered) == {"old"}
        front = ModelEntry(repository / "tiny")
        restore_runtime_models(front, load_arlo_manifest(front.version_dir(4)), 4)
        reload(server.control, repository, "tiny")
        assert traffic.continues()
    assert traffic.failures == []
    assert set(traffic.answered) == {"old", "new"}
    assert serving(server) == only(4, lengths)
