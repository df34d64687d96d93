"""A decoder with a draft model on a real server: its texts are those of transformers, and its metrics count drafts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from testing.decoders import EOS, build_decoder, tiny_model, write_decoder, write_deepened
from testing.metrics import published
from testing.servers import RunningServer, running_server
from testing.waiting import until
from tests.flover.generating import generated_by_transformers
from tidal.manifest import MANIFEST_FILE
from tidal_client import AsyncClient

pytestmark = pytest.mark.server

# A draft model that computes what the decoder computes, and one whose drafts are always wrong.
MODELS, SLOTS, TOKENS = {"alike": 0, "other": 5}, 4, 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("draft")
    source = write_deepened(folder / "source")
    for name, seed in MODELS.items():
        own = write_decoder(folder / f"draft-{name}", seed=seed)
        build_decoder(folder, name, source, slots=SLOTS, draft={"model": str(own), "precision": "fp32"})
        _slow_down(folder / "repository" / name / "1" / MANIFEST_FILE)
    with running_server(folder / "repository", exit_timeout_s=3) as running:
        for name in MODELS:
            assert running.load_error(name) == ""
        yield running


def _slow_down(file: Path) -> None:
    """Make steps of the decoder slow in its manifest, however busy the machine was, so that drafts pay."""
    manifest = json.loads(file.read_text())
    for name, rows in (("step", 100.0), ("chunk", 100.0)):
        table = manifest["profile"][name]["median_ms"]
        manifest["profile"][name]["median_ms"] = [[rows for _ in row] for row in table]
    file.write_text(json.dumps(manifest))


def metric(server: RunningServer, family: str, model: str, **labels: str) -> float:
    return published(server.metrics_text(), f"tidal_flover_{family}", model=model, **labels)


@pytest.mark.parametrize("name", MODELS)
def test_texts_are_those_of_transformers(server: RunningServer, name: str) -> None:
    draw = np.random.default_rng(1)
    prompts = [draw.integers(0, EOS, size).tolist() for size in (3, 9, 20, 40, 5, 17)]

    async def all_of_them() -> list[list[int]]:
        async with AsyncClient(f"grpc://{server.grpc}") as client:
            asked = (client.generate(name, prompt, max_tokens=TOKENS, ignore_eos=True) for prompt in prompts)
            return [list(each.tokens) for each in await asyncio.gather(*asked)]

    source = tiny_model("gpt2")
    expected = [generated_by_transformers(source, np.array(prompt), TOKENS) for prompt in prompts]
    assert asyncio.run(all_of_them()) == expected
    assert until(lambda: metric(server, "drafting_seconds_total", name) > 0)
    if name == "alike":
        assert until(lambda: metric(server, "accepted_draft_tokens_total", name, source="model") > 20)
    else:  # the build has measured that it rarely agrees: it drafts nothing that a step checks, or little
        assert metric(server, "accepted_draft_tokens_total", name, source="model") < 20
    assert metric(server, "kv_cache_bytes", name) > 0
