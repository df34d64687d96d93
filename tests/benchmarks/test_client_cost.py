"""The benchmark of the clients: both make the same call, and the claims compare them round by round."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.client_cost import __main__ as benchmark
from benchmarks.client_cost import measure
from benchmarks.client_cost.__main__ import LOADED, LONE
from benchmarks.client_cost.calls import OUTPUTS, SYSTEMS, blocking, with_asyncio
from benchmarks.client_cost.measure import Blocks, Cost
from benchmarks.client_cost.plot import plot
from benchmarks.client_cost.server import answering
from benchmarks.plots import style
from benchmarks.report import Report
from tidal_client import Classification


def _values(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Classification):
        return {name: getattr(answer, name) for name in OUTPUTS}
    arrays = dict(zip(OUTPUTS, (each[0] for each in answer), strict=True))
    return {**arrays, "label": arrays["label"].item().decode(), "max_length": arrays["max_length"].item()}


def test_both_clients_read_the_same_answer() -> None:
    async def ask(system: str, protocol: str, location: str) -> Any:
        async with with_asyncio(system, protocol, location) as call:
            return await call()

    answers = []
    with answering() as addresses:
        for protocol, location in addresses.items():
            for system in SYSTEMS:
                with blocking(system, protocol, location) as call:
                    answers.append(_values(call()))
                answers.append(_values(asyncio.run(ask(system, protocol, location))))
    assert len(answers) == 8
    for answer in answers:
        assert (answer["label"], answer["max_length"]) == ("book_flight", 64)
        np.testing.assert_array_equal(answer["logits"], np.linspace(-4, 4, 8, dtype=np.float32))
        assert answer["probabilities"].sum() == pytest.approx(1)


def test_claims_are_medians_of_the_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(style, "DPI", 30)
    ours, bare = SYSTEMS
    lone = {
        "grpc": Cost({ours: [110.0, 130.0, 900.0], bare: [100.0, 100.0, 100.0]}),
        "http_aio": Cost({ours: [300.0, 151.0, 151.0], bare: [100.0, 100.0, 100.0]}),
    }
    loaded = {"grpc": Cost({ours: [500.0, 250.0, 1000.0], bare: [1.0, 1.0, 1.0]})}
    report = Report("client_cost", quick=True)
    benchmark.conclude(report, {LONE: lone, LOADED: loaded})
    assert {claim.name: (claim.measured, claim.holds) for claim in report.claims} == {
        "client_added_us_per_call[grpc]": (30.0, True),
        "client_added_us_per_call[http_aio]": (51.0, False),
        "asyncio_calls_per_s_per_core[grpc]": (2000.0, True),
    }
    plot(report.document(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_every_transport_is_measured_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_WARMING", 2)
    monkeypatch.setattr(measure, "_start", time.process_time)  # with all tests in memory a collection takes a second
    costs = benchmark.measure(Blocks(2, 32))
    assert {case: set(found) for case, found in costs.items()} == {
        LONE: {"grpc", "http", "grpc_aio", "http_aio"},
        LOADED: {"grpc", "http"},
    }
    for found in costs.values():
        for cost in found.values():
            assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in cost.rounds.values())
