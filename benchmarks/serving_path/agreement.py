"""Whether a query's answer depends on the batch that it shared."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import numpy as np

from benchmarks.closed_loop import metric, series
from benchmarks.texts import TextMaker, tweet_lengths
from tidal.arlo.manifest import load_arlo_manifest
from tidal.manifest import MANIFEST_FILE
from tidal.server.child import RunningServer
from tidal_client import AsyncClient, Classification


def write_mixing_model(repository: Path, name: str, version_dir: Path) -> None:
    """Add a copy of a version whose profile says that batching is free.

    On this machine batches of many lengths seldom pay, so the server seldom forms them; this one always does.
    """
    shutil.copytree(version_dir, repository / name / "1")
    manifest = load_arlo_manifest(version_dir)
    flat = tuple((row[0],) * len(manifest.profile.batches) for row in manifest.profile.median_ms)
    profile = manifest.profile.model_copy(update={"median_ms": flat, "p95_ms": flat})
    content = manifest.model_copy(update={"profile": profile, "parallel": None})
    (repository / name / "1" / MANIFEST_FILE).write_text(content.model_dump_json())
    (repository / name / "config.pbtxt").write_text('backend: "arlo"\n')


def measure(
    server: RunningServer, model: str, source: Path, maker: TextMaker, data: Path | None, *, rows: int
) -> dict[str, float]:
    """Serve `rows` queries of mixed lengths in mixed batches and ask the unmodified model for each one alone.

    Returns:
        `agreement` (share of equal labels), `max_abs_error` of any logit, `mean_distinct_lengths` in a batch that
        ran, and `mixed_batches`, the number of batches with 8 different lengths and more.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    lengths, _ = tweet_lengths(rows, seed=7, data=data)
    texts = [maker.text(n) for n in lengths]
    family = "tidal_arlo_batch_distinct_lengths"
    before, few_before = metric(server, family, model) or (0.0, 0.0), series(server, f"{family}_bucket", model, le="7")
    answers = asyncio.run(_ask(server.grpc, model, texts))
    time.sleep(0.5)  # metrics are published every 200 ms
    after, few_after = metric(server, family, model) or (0.0, 0.0), series(server, f"{family}_bucket", model, le="7")
    torch.set_num_threads(1)  # its threads wait for each other by spinning, which other load draws out
    reference = AutoModelForSequenceClassification.from_pretrained(source).eval()
    tokenizer = AutoTokenizer.from_pretrained(source)
    equal, worst = 0, 0.0
    for text, answer in zip(texts, answers, strict=True):
        with torch.inference_mode():
            expected = reference(**tokenizer(text, return_tensors="pt")).logits[0].numpy()
        assert answer.logits is not None
        equal += int(expected.argmax()) == int(answer.logits.argmax())
        worst = max(worst, float(np.abs(expected - answer.logits).max()))
    return {
        "agreement": equal / rows,
        "max_abs_error": worst,
        "mixed_batches": (after[1] - before[1]) - ((few_after or 0.0) - (few_before or 0.0)),
        "mean_distinct_lengths": (after[0] - before[0]) / max(1.0, after[1] - before[1]),
    }


async def _ask(url: str, model: str, texts: list[str]) -> list[Classification]:
    limit = asyncio.Semaphore(128)
    async with AsyncClient(url) as client:

        async def one(text: str) -> Classification:
            async with limit:
                return await client.classify(model, text)

        return list(await asyncio.gather(*(one(text) for text in texts)))
