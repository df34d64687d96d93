"""What is claimed of models that share something, and that loads are the same for every system."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compositions import sharing
from benchmarks.compositions.sharing import (
    PoissonResult,
    SharingRound,
    SharingSize,
    SharingSystem,
    SharingWorkload,
    add_sharing,
)
from benchmarks.report import Report

OWN, OTHER, SHARED = "own", "other", "shared"


def nothing(_: Path) -> None:
    """Adds no model."""


async def said(_client: Any, name: str, query: Any, request_id: str) -> Any:
    await asyncio.sleep(0)
    return name, query, request_id


def systems(*names: str) -> dict[str, SharingSystem]:
    workload = SharingWorkload(lambda draw, number: draw.random() + number, said)
    return {name: SharingSystem("", nothing, [], ["a", "b"], workload) for name in names}


def arrived(*latencies_ms: float, answers: tuple[int, ...] = (1, 2)) -> PoissonResult:
    return PoissonResult(list(latencies_ms), {f"q{number}": answer for number, answer in enumerate(answers)}, 0, 0.1)


OWN_ROUNDS = [
    SharingRound(1000, 5, 100, 0, {0.5: arrived(10, 30)}),
    SharingRound(2000, 5, 50, 1, {0.5: arrived(20, 20)}),
]
SHARED_ROUNDS = [
    SharingRound(500, 6, 110, 0, {0.5: arrived(10, 20)}),
    SharingRound(1500, 6, 60, 0, {0.5: arrived(30, 30, answers=(1, 1))}),
]


def claims(found: dict[str, list[SharingRound]], **options: Any) -> dict[str, float]:
    report = Report("it", quick=True)
    add_sharing(report, systems(*found), found, 100.0, shared=SHARED, prefix="it", **options)
    return {claim.name: claim.measured for claim in report.claims}


def test_ratios_are_of_a_round_and_claims_their_medians() -> None:
    found = claims({OWN: OWN_ROUNDS, SHARED: SHARED_ROUNDS}, least_same=0.99)
    assert found["it_memory"] == pytest.approx((0.5 + 0.75) / 2)
    assert found["it_answers"] == pytest.approx((1.1 + 1.2) / 2)
    assert found["it_mean[50%]"] == pytest.approx((0.75 + 1.5) / 2)
    assert found["it_same_answers"] == 0.5
    assert found["it_failed"] == 1


def test_it_is_held_against_the_best_of_the_others() -> None:
    other = [SharingRound(800, 5, 200, 0, {0.5: arrived(40, 40)}), SharingRound(4000, 5, 10, 0, {0.5: arrived(5, 5)})]
    found = claims({OWN: OWN_ROUNDS, OTHER: other, SHARED: SHARED_ROUNDS})
    assert found["it_memory"] == pytest.approx((500 / 800 + 1500 / 2000) / 2)
    assert found["it_answers"] == pytest.approx((110 / 200 + 60 / 50) / 2)
    assert found["it_mean[50%]"] == pytest.approx((15 / 20 + 30 / 5) / 2)
    assert "it_same_answers" not in found


class Client:
    """Asks nobody."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class Server:
    grpc = ""


def arrive(system: SharingSystem, seed: int) -> dict[str, Any]:
    return asyncio.run(sharing._arrive(Server(), system, 200.0, 0.3, seed=seed)).answers  # type: ignore[arg-type]


def test_equal_seeds_give_equal_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "AsyncClient", Client)
    both = systems(OWN, SHARED)
    one = arrive(both[OWN], 3)
    assert len(one) > 20
    assert arrive(both[SHARED], 3) == one
    assert arrive(both[OWN], 4) != one
    assert {name for name, *_ in one.values()} == {"a", "b"}
    assert len({query for _, query, _ in one.values()}) == len(one)


def test_it_is_kept_busy_until_enough_were_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "AsyncClient", Client)
    size, asked = SharingSize(2, 1, 1.0, (), in_flight=3), list[tuple[str, float]]()

    async def keep(_client: Any, name: str, query: float, _id: str) -> None:
        asked.append((name, query))
        if len(asked) == 5:
            raise RuntimeError
        await asyncio.sleep(0)

    system = SharingSystem(
        "", nothing, [], ["a", "b"], SharingWorkload(lambda draw, number: draw.random() + number, keep)
    )
    per_second, failed = asyncio.run(
        sharing._busy(Server(), system, size, seconds=30.0, seed=1, most=40)  # type: ignore[arg-type]
    )
    assert per_second > 0
    assert failed == 1
    assert 40 <= len(asked) < 46
    assert len(set(asked)) == len(asked)  # every lane draws its own
