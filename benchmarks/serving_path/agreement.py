"""Agreement of served answers with the unmodified model: a query's batch must not change its answer."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np

from benchmarks.closed_loop import metric, series
from benchmarks.texts import TextMaker, tweet_lengths
from testing.waiting import until
from tidal.arlo.manifest import load_arlo_manifest
from tidal.manifest import MANIFEST_FILE
from tidal.server.child import RunningServer
from tidal_client import AsyncClient, Classification

_SIZES = "tidal_arlo_batch_size_queries"


def write_mixing_model(repository: Path, name: str, version_dir: Path) -> None:
    """Add a copy of a version with a profile in which a batch takes as long as one query.

    By the measured profile, batches of many lengths rarely pay on this machine, and the server rarely forms them.

    Args:
        repository: Model repository to write to.
        name: Name of the new model.
        version_dir: Version folder to copy.
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
    """Serve queries of mixed lengths in mixed batches and run the unmodified model on each query alone.

    Args:
        server: Running server.
        model: Name of the model.
        source: Folder of the unmodified model.
        maker: Generator of texts.
        data: Folder with tweet lengths, or None.
        rows: Number of queries.

    Returns:
        `agreement` (share of equal labels), `max_abs_error` of all logits, `mean_distinct_lengths` per executed
        batch, and `mixed_batches`, the number of batches with at least 8 distinct lengths.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    lengths, _ = tweet_lengths(rows, seed=7, data=data)
    texts = [maker.text(n) for n in lengths]
    family = "tidal_arlo_batch_distinct_lengths"
    before, few_before = metric(server, family, model) or (0.0, 0.0), series(server, f"{family}_bucket", model, le="7")
    ran_before = _queries_run(server, model)
    answers = asyncio.run(_ask(server.grpc, model, texts))
    # Busy models publish metrics every 5 s, one family after another.
    until(lambda: _queries_run(server, model) - ran_before >= rows and _published(server, model, family))
    after, few_after = metric(server, family, model) or (0.0, 0.0), series(server, f"{family}_bucket", model, le="7")
    torch.set_num_threads(1)  # torch's threads spin while they wait, which is slow beside other load
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


def _queries_run(server: RunningServer, model: str) -> float:
    return (metric(server, _SIZES, model) or (0.0, 0.0))[0]


def _published(server: RunningServer, model: str, family: str) -> bool:
    """Whether a family counts as many batches as that of their sizes."""
    sizes, found = (metric(server, name, model) for name in (_SIZES, family))
    return sizes is not None and found is not None and sizes[1] == found[1]


async def _ask(url: str, model: str, texts: list[str]) -> list[Classification]:
    limit = asyncio.Semaphore(128)
    async with AsyncClient(url) as client:

        async def one(text: str) -> Classification:
            async with limit:
                return await client.classify(model, text)

        return list(await asyncio.gather(*(one(text) for text in texts)))
