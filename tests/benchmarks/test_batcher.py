"""The parts of the batcher's benchmark that need no server."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

from benchmarks.batcher import __main__ as benchmark
from benchmarks.batcher.batchings import Batching, search_batcher, search_plain
from benchmarks.batcher.measure import BatcherCell, inputs
from benchmarks.report import Report
from tidal.engine_model.manifest import EngineInput, EngineManifest


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("search", [search_plain, search_batcher])
def test_every_candidate_has_a_config_that_triton_knows(search: object, quick: bool) -> None:
    manifest = EngineManifest.model_construct(name="m", inputs=(EngineInput(name="input_ids", below=9),))
    seen: list[Batching] = []

    def last(candidates: Sequence[Batching]) -> Batching:
        seen.extend(candidates)
        return candidates[-1]

    assert search(last, quick=quick) in seen  # type: ignore[operator]
    assert len({candidate.name for candidate in seen}) == len(set(seen))
    for candidate in seen:
        config = model_config_pb2.ModelConfig()
        json_format.ParseDict(candidate.config(manifest, 2), config)
        named = "TRITON_BATCH_STRATEGY_PATH" in config.parameters
        assert named == (search is search_batcher)
        sizes = list(config.dynamic_batching.preferred_batch_size)
        assert all(1 <= size <= config.max_batch_size for size in sizes)
        assert (sizes == list(range(1, config.max_batch_size + 1))) == candidate.final


def test_lengths_are_mixed_and_padded() -> None:
    made = inputs(200, ("input_ids", "attention_mask", "token_type_ids"), seed=1)
    lengths = {each["input_ids"].shape[1] for each in made}
    assert len(lengths) > 10
    assert all(length % 16 == 0 and length <= 512 for length in lengths)
    assert all((each["input_ids"] > 0).sum() == each["attention_mask"].sum() for each in made)


class Pretended(benchmark.BatcherBench):
    """A bench without a server: the batcher takes half of the plain one's time, with bins a quarter."""

    def __init__(self) -> None:
        super().__init__(None, None, 1.0)  # type: ignore[arg-type]
        self.measured: list[tuple[Batching, float]] = []

    def run(self, batching: Batching, rate: float, *, seed: int, seconds: float | None = None) -> BatcherCell:
        self.measured.append((batching, rate))
        took = 8.0 / (4 if batching.length_bin else 2 if batching.tokens else 1)
        return BatcherCell(1000 / took, [took, took], 1 if seed == benchmark._FIRST_SEED else 0, 2.0)


def test_a_quick_comparison_searches_once_and_makes_every_claim() -> None:
    report, bench = Report("batcher", quick=True), Pretended()
    benchmark._compare(report, bench, quick=True)  # type: ignore[arg-type]
    claims = {claim.name: claim.measured for claim in report.claims}
    assert claims == {
        "answers_vs_plain": 4.0,
        "failed[all at once]": 2,
        "mean_latency_vs_plain[80%]": 0.25,
        "p98_latency_vs_plain[80%]": 0.25,
        "failed[80%]": 2,
    }
    at_a_rate = [batching for batching, rate in bench.measured if not math.isinf(rate)]
    assert len(at_a_rate) == 4  # two rounds of the two that were found
    assert {batching.length_bin for batching in at_a_rate} == {None, 64}
    assert len({(load, batching) for load, batching, *_ in bench.searched}) == len(bench.searched)
