"""The early router: its features and estimates, and cascades whose first level it skips."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from testing.candidates import candidate
from tests.tabi.serving import VERSION, FakeLevels, Request, cascades, running, write_cascade
from tidal.errors import Internal
from tidal.tabi.choice import single_level
from tidal.tabi.early import EarlyRouter, after_early_routing, ngram_buckets
from tidal.tabi.manifest import Candidate, EarlyRouterInfo, TabiManifest

BUCKETS = 4096


def bucket(part: int, *words: str) -> int:
    """Return the bucket of a word of a text, or of a word and the one after it."""
    return zlib.crc32("\n".join([str(part), *words]).encode()) % BUCKETS


def weights_of(word: str, weight: float) -> np.ndarray:
    """Return weights under which only one word of the first text counts."""
    weights = np.zeros(BUCKETS)
    weights[bucket(0, word)] = weight
    return weights


class TestRouter:
    def test_ngrams_are_words_and_pairs_of_each_text(self) -> None:
        found = ngram_buckets([b"Don't GO", b"go"], BUCKETS)
        words = {bucket(0, word) for word in ("don", "'", "t", "go")} | {bucket(1, "go")}
        pairs = {bucket(0, *each) for each in (("", "don"), ("don", "'"), ("'", "t"), ("t", "go"))} | {
            bucket(1, "", "go")
        }
        assert set(found.tolist()) == words | pairs
        assert ngram_buckets([b" ", b""], BUCKETS).size == 0

    @given(st.lists(st.binary(max_size=40), min_size=1, max_size=2), st.integers(1, 5000), st.integers(0, 9))
    def test_any_text_has_an_estimate(self, texts: list[bytes], buckets: int, seed: int) -> None:
        found = ngram_buckets(texts, buckets)
        assert (np.diff(found) > 0).all()
        assert ((found >= 0) & (found < buckets)).all()
        weights = np.random.default_rng(seed).normal(size=buckets) * 10.0**seed
        router = EarlyRouter(weights, float(seed))
        estimate = router.difficulty(texts)
        assert 0 <= estimate <= 1
        assert estimate == router.difficulty(texts)
        vector = np.zeros(buckets)
        vector[found] = 1 / math.sqrt(max(len(found), 1))
        with np.errstate(over="ignore"):
            assert estimate == pytest.approx(1 / (1 + np.exp(-(weights @ vector + seed))))

    def test_a_request_skips_the_level_if_all_rows_are_difficult(self) -> None:
        both = candidate("both", (0, 1)).model_copy(update={"early": 0.5, "pruning": 0.7})
        routers = {0: EarlyRouter(weights_of("hard", 8.0), -1.0)}
        hard, easy = [b"hard words"], [b"easy words"]
        assert after_early_routing(both, routers, [hard]) == single_level(both, 1)
        assert after_early_routing(both, routers, [hard, hard]).levels == (1,)
        assert after_early_routing(both, routers, [hard, easy]) is both
        assert after_early_routing(both, routers, [easy]) is both
        # The estimate has to exceed the threshold.
        exactly = both.model_copy(update={"early": routers[0].difficulty(hard)})
        assert after_early_routing(exactly, routers, [hard]) is exactly
        plain = both.model_copy(update={"early": None})
        assert after_early_routing(plain, {}, [hard]) is plain


def write_early(folder: Path, **named: Any) -> TabiManifest:
    """Write a cascade that sends texts with the word "drop" to the last level at once."""
    file = folder / str(VERSION) / "early_routers" / "l0.npz"
    file.parent.mkdir(parents=True)
    np.savez(file, weights=weights_of("drop", 20.0), bias=np.float64(-5.0))
    both = [each.model_copy(update={"early": 0.5 if len(each.levels) == 2 else None}) for each in cascades(pruning=0.5)]
    router = EarlyRouterInfo(level=0, file="early_routers/l0.npz", loss=0.4, constant_loss=0.5)
    return write_cascade(folder, both, early_routers=(router,), **named)


@pytest.mark.usefixtures("placement")
class TestServing:
    def test_difficult_queries_skip_the_first_level(self, tmp_path: Path) -> None:
        write_early(tmp_path)
        levels = FakeLevels()
        with running(tmp_path, levels) as run:
            drop, sure, unsure = Request("sure drop"), Request("sure a"), Request("unsure a")
            run.submit(drop, sure, unsure)
            assert [each.one("level") for each in (drop, sure, unsure)] == [2, 1, 2]
            # The last level alone, on the whole text.
            assert drop.one("probabilities")[0] == pytest.approx(1 / (1 + np.exp(3)), abs=1e-6)
            assert (drop.one("pruned_text"), drop.one("degraded")) == (b"sure drop", False)
            assert run.counts("early_routed_queries_total", 1)
            assert run.counts("level_queries_total", 2, level="1")
            assert run.counts("level_queries_total", 2, level="2")
        assert len(levels.of("c_l0")) == 2

    def test_a_request_may_forbid_the_last_level(self, tmp_path: Path) -> None:
        write_early(tmp_path)
        with running(tmp_path, FakeLevels()) as run:
            request = Request("sure drop", max_level=1)
            run.submit(request)
            assert request.one("level") == 1

    def test_rows_skip_together_or_not_at_all(self, tmp_path: Path) -> None:
        write_early(tmp_path)
        levels = FakeLevels()
        with running(tmp_path, levels) as run:
            all_hard, mixed = Request("sure drop", "drop"), Request("sure drop", "sure a")
            run.submit(all_hard, mixed)
            assert all_hard.wait()["level"].ravel().tolist() == [2, 2]
            assert mixed.wait()["level"].ravel().tolist() == [1, 1]
            assert run.counts("early_routed_queries_total", 2)

    def test_the_skipped_level_answers_if_the_last_one_fails(self, tmp_path: Path) -> None:
        write_early(tmp_path)
        levels = FakeLevels()
        levels.before["c_l1"] = fail
        with running(tmp_path, levels) as run:
            request = Request("sure drop")
            run.submit(request)
            assert (request.one("level"), request.one("label"), request.one("degraded")) == (1, b"no", True)
            assert run.counts("degraded_queries_total", 1, cause="failure")

    def test_or_the_request_fails(self, tmp_path: Path) -> None:
        write_early(tmp_path)
        levels = FakeLevels()
        levels.before["c_l1"] = fail
        with running(tmp_path, levels, on_level_failure="error") as run:
            request = Request("sure drop")
            run.submit(request)
            with pytest.raises(Internal, match="level 2"):
                request.wait()
        assert not levels.of("c_l0")

    def test_a_deadline_that_is_too_short_for_the_last_level_keeps_the_first(self, tmp_path: Path) -> None:
        write_early(tmp_path, means_ms=(1.0, 60_000.0))
        with running(tmp_path, FakeLevels()) as run:
            request = Request("sure drop", latency_ms=5_000)
            run.submit(request)
            assert (request.one("level"), request.one("degraded")) == (1, False)


def fail(_: int) -> None:
    raise Internal("the level is broken")


def test_a_manifest_with_a_threshold_has_a_router(tmp_path: Path) -> None:
    manifest = write_early(tmp_path)
    with pytest.raises(ValidationError, match="candidate both has early, but its first level has no early router"):
        TabiManifest.model_validate(manifest.model_dump() | {"early_routers": ()})
    with pytest.raises(ValidationError, match="early is for candidates of two levels, got 1"):
        Candidate.model_validate(candidate("one").model_dump() | {"early": 0.5})
