"""The parts of a profile that only a GPU needs, checked on the CPU: stream rules, operational intensity, memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.models import make_tiny_classifier
from testing.small_base import random_task, small_base
from tests.pets.policies.costs import make_profile
from tidal.pets.policies.streams import TaskOperator, assign_streams, operational_intensity
from tidal.pets.profile import PetsProfile, StreamRule
from tidal.pets.torch_engine.engine import TorchPetsEngine, open_torch_engine
from tidal.pets.torch_engine.streams import by_intensity, together
from tidal_builders.pets import profiling, streams
from tidal_builders.pets.base import export_encoder
from tidal_builders.pets.profiling import measure_profile
from tidal_builders.pets.source import load_base
from tidal_builders.pets.streams import StreamTiming, best_rule, operator_profile, run_every_way, with_streams
from tidal_builders.pets.typical import TYPICAL_KINDS, typical_task

Built = tuple[TorchPetsEngine, Any, PetsProfile]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """A torch engine, the layers of its base, and a profile with operators and a stream rule."""
    folder = tmp_path_factory.mktemp("streams")
    source = load_base(make_tiny_classifier(folder / "tiny", max_position=16, layers=1))
    layers, _ = export_encoder(source.model, folder / "engine", "torch")
    engine = open_torch_engine(folder / "engine", threads=1)
    sizes: Any = {"max_length": 16, "max_batch": 8, "max_tokens": 128, "threads": 1, "kinds": TYPICAL_KINDS}
    profile = measure_profile(engine, layers, **sizes, seconds=0.1, progress=lambda _share: None)
    assert (profile.operators, profile.streams) == ({}, None)  # a CPU has no streams
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "_STREAMS", (1, 2, 8))
        yield engine, layers, with_streams(engine, layers, profile, seconds=0.1)


def test_operators_of_all_kinds_and_a_stream_rule_are_measured(built: Built) -> None:
    engine, _, profile = built
    assert set(profile.operators) == set(TYPICAL_KINDS)
    assert profile.streams is not None
    assert profile.streams.few < profile.streams.many
    assert engine.assign is together
    assert PetsProfile.model_validate_json(profile.model_dump_json()) == profile


def test_operators_are_assigned_to_streams_by_intensity(built: Built) -> None:
    profile = built[2].model_copy(update={"streams": StreamRule(threshold_tokens=8, few=1, many=3)})
    assign = by_intensity(profile)
    operators = [TaskOperator(kind, 1, 16) for kind in TYPICAL_KINDS]
    assert assign(operators) == assign_streams(operators, profile, 3)
    assert sorted(set(assign(operators))) == [0, 1, 2]
    assert assign([TaskOperator(kind, 1, 4) for kind in TYPICAL_KINDS]) == [0] * 5
    assert assign([]) == []
    assert by_intensity(profile, 2)(operators) == assign_streams(operators, profile, 2)
    assert len(assign([TaskOperator("another", 1, 16), *operators])) == 6


def test_without_measured_operators_all_share_one_stream() -> None:
    profile = make_profile(lambda length, n: 1.0, {"lora": lambda length, n: 1.0})
    assert by_intensity(profile) is together


def test_intensity_is_operations_per_byte_moved() -> None:
    base, milliseconds = small_base(), make_profile(lambda *_: 1.0, {"x": lambda *_: 2.0}).terms_ms["x"]
    terms = random_task("lora", base)
    found = operator_profile(terms, base, milliseconds)
    ranks = sum(3 * sum(layer.shape) for layer in base.linear.values())
    activations = sum(inputs + 2 * outputs for outputs, inputs in (layer.shape for layer in base.linear.values()))
    assert found.flops_per_token == 2 * ranks
    # 4 bytes per number; the terms take 2 ms.
    moved = 4 * (ranks + len(base.linear)) + 4 * activations * 6
    assert found.gigabytes_per_s.at(3, 2) == pytest.approx(moved / 2e-3 / 1e9, rel=0.02)
    profile = make_profile(lambda *_: 1.0, {"lora": lambda *_: 2.0}).model_copy(update={"operators": {"lora": found}})
    assert operational_intensity(TaskOperator("lora", 2, 3), profile) == pytest.approx(2 * ranks * 6 / moved, rel=0.02)


def test_the_stream_rule_minimises_the_total_time_of_all_cases() -> None:
    timed = [
        StreamTiming(4, {1: 1.0, 4: 2.0, 32: 5.0}),
        StreamTiming(16, {1: 3.0, 4: 2.0, 32: 3.5}),
        StreamTiming(64, {1: 9.0, 4: 6.0, 32: 5.9}),
    ]
    rule = best_rule(timed)
    assert (rule.few, rule.many, rule.threshold_tokens) == (1, 4, 10)


def test_memory_and_streams_are_measured_on_a_gpu(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, layers, profile = built
    monkeypatch.setattr(engine, "device", "gpu")
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 10)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1010)
    monkeypatch.setattr(profiling, "with_streams", lambda *_, **__: profile)
    sizes: Any = {"max_length": 16, "max_batch": 1, "max_tokens": 16, "threads": 1, "kinds": TYPICAL_KINDS}
    measured: list[PetsProfile] = []
    monkeypatch.setattr(profiling, "with_streams", lambda _engine, _layers, made, **_: measured.append(made) or profile)
    found = measure_profile(engine, layers, **sizes, seconds=0.1, progress=lambda _share: None)
    assert found is profile
    assert measured[0].memory_bytes.at(16, 1) == 1000


def test_every_code_path_of_a_gpu_is_verified(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, layers, _ = built
    ids, lengths = np.full((5, 8), 7), np.arange(3, 8)
    tasks = [engine.add(typical_task(kind, layers)) for kind in TYPICAL_KINDS]
    (alone,) = run_every_way(engine, tasks, ids, lengths, None)
    monkeypatch.setattr(engine, "device", "gpu")
    parts: list[int] = []
    pooled = engine.pooled

    def counting(*arguments: Any) -> Any:
        parts.append(len(engine._parts(tasks, lengths)))
        return pooled(*arguments)

    monkeypatch.setattr(engine, "pooled", counting)
    found = run_every_way(engine, tasks, ids, lengths, None)
    assert parts == [1, 1, 3, 3]
    for each in found:
        np.testing.assert_allclose(each, alone, atol=1e-5)
    assert engine.assign is together


def test_an_opened_engine_assigns_streams_by_its_profile(built: Built, tmp_path: Path) -> None:
    from tidal.pets.opening import open_pets_engine

    source = load_base(make_tiny_classifier(tmp_path / "tiny", max_position=16, layers=1))
    export_encoder(source.model, tmp_path / "engine", "torch")
    opened: Any = open_pets_engine("torch", tmp_path / "engine", threads=1, device="cpu", profile=built[2])
    assert opened.assign is not together
    assert len(opened.assign([TaskOperator("lora", 1, 8)] * 3)) == 3
