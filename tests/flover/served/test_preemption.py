"""A model whose budget of keys and values is too small for all of its streams at the same time, on a real server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import numpy as np
import pytest

from testing.config import parameter
from testing.decoders import EOS, build_decoder, tiny_model, write_decoder
from testing.metrics import published
from testing.servers import RunningServer, running_server
from testing.waiting import until
from tests.flover.generating import generated_by_transformers
from tidal_client import AsyncClient, Client, InvalidArgument

pytestmark = pytest.mark.server

MODEL, SLOTS, TOKENS = "tight", 6, 70
# 16 tokens fill a page of each head. A full slot takes 256 KiB, and all streams of this test more than 1 MiB.
WIDE = {"n_embd": 128, "n_head": 2}
BUDGET_MIB = 0.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("tight")
    build_decoder(folder, MODEL, write_decoder(folder / "source", "gpt2", **WIDE), slots=SLOTS)
    with (folder / "repository" / MODEL / "config.pbtxt").open("a") as config:
        config.write(parameter("kv_cache_mb", BUDGET_MIB))
    with running_server(folder / "repository", exit_timeout_s=3) as running:
        assert running.load_error(MODEL) == ""
        yield running


def metric(server: RunningServer, family: str, **labels: str) -> float:
    return published(server.metrics_text(), f"tidal_flover_{family}", model=MODEL, **labels)


def test_all_streams_end_with_the_tokens_of_an_unlimited_run(server: RunningServer) -> None:
    draw = random.Random(1)
    prompts = [[draw.randrange(EOS) for _ in range(30)] for _ in range(2 * SLOTS)]
    source = tiny_model("gpt2", **WIDE)

    async def stream(client: AsyncClient, prompt: list[int]) -> list[int]:
        parts = client.generate_stream(MODEL, prompt, max_tokens=TOKENS, ignore_eos=True)
        return [token async for part in parts for token in part.tokens]

    async def all_of_them() -> list[list[int]]:
        async with AsyncClient(f"grpc://{server.grpc}") as client:
            return await asyncio.gather(*(stream(client, prompt) for prompt in prompts))

    found = asyncio.run(all_of_them())
    assert found == [generated_by_transformers(source, np.array(prompt), TOKENS) for prompt in prompts]
    assert until(lambda: metric(server, "generations_total", outcome="length") == len(prompts))
    assert metric(server, "generations_total") == len(prompts)
    assert metric(server, "preemptions_total") >= 1
    assert metric(server, "recomputed_tokens_total") >= 1
    assert metric(server, "kv_cache_budget_bytes") == BUDGET_MIB * 2**20
    assert 0 < metric(server, "kv_cache_bytes") <= BUDGET_MIB * 2**20


def test_beams_that_never_fit_are_refused(server: RunningServer) -> None:
    with (
        Client(f"grpc://{server.grpc}") as client,
        pytest.raises(InvalidArgument, match=r"3 beams of up to 100 tokens.*524,288 \(kv_cache_mb\)"),
    ):
        client.generate(MODEL, [1] * 10, max_tokens=90, num_beams=3)
