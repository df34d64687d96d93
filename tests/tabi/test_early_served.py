"""A cascade with an early router on a real server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testing.cascades import LABELS, LARGE, SMALL, Cascades
from testing.metrics import published
from testing.servers import running_server
from testing.waiting import until
from tests.tabi.test_served import TEXTS, column
from tidal.manifest import MANIFEST_FILE
from tidal.serving.softmax import softmax
from tidal.tabi.early import EarlyRouter
from tidal.tabi.manifest import EarlyRouterInfo
from tidal_client import Client

pytestmark = pytest.mark.server


def test_difficult_queries_are_answered_by_the_last_level_alone(cascades: Cascades, tmp_path: Path) -> None:
    cascades.copy_level(tmp_path, SMALL)
    cascades.copy_level(tmp_path, LARGE)
    manifest = cascades.publish(tmp_path, "c", cascades.cutoff(TEXTS[:60]))
    weights, bias = np.random.default_rng(0).normal(size=256).astype(np.float32), -0.5
    router = EarlyRouter(weights, bias)
    folder = tmp_path / "c" / "1"
    np.savez(folder / "router.npz", weights=weights, bias=np.float64(bias))
    early = tuple(
        each.model_copy(update={"early": 0.5 if len(each.levels) == 2 else None}) for each in manifest.candidates
    )
    info = EarlyRouterInfo(level=0, file="router.npz", loss=0.5, constant_loss=0.6)
    written = manifest.model_copy(update={"candidates": early, "early_routers": (info,)})
    (folder / MANIFEST_FILE).write_text(written.model_dump_json())
    skipped = 0
    with running_server(tmp_path, models=("c",)) as server, Client(f"grpc://{server.grpc}") as client:
        for number, text in enumerate(TEXTS):
            answer = client.infer("c", {"text_input": column(text)}, request_id=f"q{number}")
            found = answer["level"].item(), answer["label"].item().decode(), answer["pruned_text"].item().decode()
            assert not answer["degraded"].item()
            if router.difficulty([text.encode()]) > 0.5:
                skipped += 1
                large = cascades.open[1]
                logits, _ = large.run(large.read([text]))
                assert found == (2, LABELS[int(logits.argmax())], text)
                np.testing.assert_allclose(answer["probabilities"][0], softmax(logits), atol=1e-4)
            else:
                wanted = cascades.route_offline(manifest, 1, [text], f"q{number}", 0)
                assert wanted.answer.label is not None
                assert found == (wanted.answer.level, LABELS[wanted.answer.label], wanted.read[0])
        assert 0.2 < skipped / len(TEXTS) < 0.8
        family = "tidal_tabi_early_routed_queries_total"
        assert until(lambda: published(server.metrics_text(), family, model="c") == skipped)
