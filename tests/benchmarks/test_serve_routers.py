"""The compared routers: dispatchers, loads, senders, Ray Serve's settings, and what the report says of them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.cluster.serve_routers import __main__ as benchmark
from benchmarks.cluster.serve_routers import ray_serve
from benchmarks.cluster.serve_routers.dispatchers import RoundRobin
from benchmarks.cluster.serve_routers.loads import Loads
from benchmarks.cluster.serve_routers.outcome import (
    HAPROXY,
    LEAST_OUTSTANDING,
    RAY,
    ROUND_ROBIN,
    TIDAL,
    add_case,
)
from benchmarks.cluster.serve_routers.plot import plot
from benchmarks.cluster.serve_routers.processor import DEVICES, REST, ROUTER, Processor
from benchmarks.cluster.serve_routers.ray_serve import Form, Ingress
from benchmarks.cluster.serve_routers.rounds import Case, Cell, Compared, Measuring, Plan, measure_rounds
from benchmarks.cluster.serve_routers.search import Tried, best, report_search
from benchmarks.cluster.serve_routers.systems import ByLength, RaySystem, SpreadSender, bytes_value
from benchmarks.cluster.simulated.inputs import BASE, ClusterData
from benchmarks.encoders.load import LoadResult
from benchmarks.report import Report
from tidal.arlo.policies.base import ArloQuery

PLAN = Plan(rounds=2, in_flight=48, closed_s=2.0, rate=100.0, open_s=4.0)


class TestRoundRobin:
    @given(st.lists(st.integers(1, 512), max_size=60), st.lists(st.integers(0, 3), min_size=3, max_size=3))
    def test_an_instance_waits_until_all_others_that_fit_have_had_a_turn(
        self, lengths: list[int], counts: list[int]
    ) -> None:
        runtimes = (128, 256, 512)
        policy = RoundRobin(runtimes, (0.001,) * 3, 1.0, [*counts[:2], counts[2] + 1])
        lanes = policy.lanes
        turns: list[int] = []  # lanes, the last selected at the end
        for number, length in enumerate(lengths):
            policy.submit(ArloQuery(length, float(number)))
            batch = policy.next_batch(float(number))
            assert batch is not None
            fitting = [lane for lane, runtime in lanes.items() if runtimes[runtime] >= length]
            assert batch.lane in fitting
            never = [lane for lane in fitting if lane not in turns]
            assert batch.lane in never or (not never and batch.lane == next(each for each in turns if each in fitting))
            policy.finished(batch)
            turns = [each for each in turns if each != batch.lane] + [batch.lane]


class TestLoads:
    def test_equal_seeds_give_equal_queries(self) -> None:
        loads = Loads(ClusterData(None))
        first, same, other = (loads.poisson(200, seconds=2, seed=seed) for seed in (3, 3, 4))
        assert first.lengths == same.lengths
        assert np.array_equal(np.asarray(first.times), np.asarray(same.times))
        assert first.lengths != other.lengths
        assert first.times is not None
        assert len(first.lengths) == len(first.times)
        closed = loads.closed(in_flight=8, seconds=1.0, warm_s=0.5, seed=3)
        assert closed.times is None
        assert list(closed.lengths[: len(first.lengths)]) == list(first.lengths)
        assert 1 <= min(closed.lengths) <= max(closed.lengths) <= 512
        assert len(closed.lengths) > 30_000

    def test_a_query_is_encoded_once(self) -> None:
        encoded: list[int] = []

        def encode(ids: Any) -> bytes:
            encoded.append(len(ids))
            return bytes(len(ids))

        requests = ByLength(encode)
        assert [len(requests[length]) for length in (3, 5, 3)] == [3, 5, 3]
        assert encoded == [3, 5]

    def test_entrances_get_equal_shares(self) -> None:
        sent: Counter[int] = Counter()

        class Sender:
            def __init__(self, at: int) -> None:
                self.at = at

            def send(self, number: int, payload: bytes) -> None:
                sent[self.at] += 1

            def close(self) -> None:
                sent[self.at] += 100

        sender = SpreadSender([lambda finish, at=at: Sender(at) for at in range(3)], lambda number, error: None)
        for number in range(9):
            sender.send(number, b"")
        sender.close()
        assert sent == {0: 103, 1: 103, 2: 103}

    @given(st.binary(max_size=5000))
    @example(bytes(127))  # the limits of a varint of one byte, and of two
    @example(bytes(128))
    @example(bytes(16383))
    @example(bytes(16384))
    def test_messages_are_those_of_protobuf(self, content: bytes) -> None:
        assert BytesValue.FromString(bytes_value(content)).value == content


def test_shares_of_the_cores_are_by_part() -> None:
    code = "import sys\nfor _ in range(10**7): pass\nprint('burnt', flush=True)\nsys.stdin.read()"
    idle = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    burner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        processor = Processor()
        with processor.watch([idle.pid, burner.pid], lambda each: DEVICES if each.pid == burner.pid else ROUTER):
            assert burner.stdout is not None
            burner.stdout.readline()
        assert processor.parts[DEVICES] > 2 * processor.parts[ROUTER] >= 0
        assert processor.parts[REST] == 0
        assert processor.sender < processor.parts[DEVICES]
    finally:
        for each in (idle, burner):
            each.kill()
            each.communicate()


class FakeSystem:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    @property
    def pids(self) -> Sequence[int]:
        return [psutil.Process().pid]

    def part(self, process: psutil.Process) -> str:
        return ROUTER

    def prepare(self) -> None:
        self.log.append(f"prepare {self.name}")

    def send(self, load: Any) -> LoadResult:
        self.log.append(f"{self.name} {'closed' if load.times is None else 'open'} {load.in_flight}")
        return LoadResult(100.0, np.array([1.0, 2.0, 9.0]), 1, 0.0, 1.0, "lost")


def test_rounds_alternate_and_use_the_settings_of_each_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.cluster.serve_routers.rounds._RESUMED_S", 0.0)
    log: list[str] = []
    systems = {name: Compared(FakeSystem(f"{name} fast", log), FakeSystem(f"{name} soon", log)) for name in "ab"}
    cases = (Case("true", 1.0), Case("short", 0.1))
    found = measure_rounds(
        Measuring(Loads(ClusterData(None)), []), systems, cases, PLAN, lambda stretch: log.append(f"stretch {stretch}")
    )
    measured = [line for line in log if not line.startswith("prepare") and not line.endswith("closed 8")]
    a, b = (["x fast closed 48", "x soon open 0"] for _ in "ab")
    a, b = ([line.replace("x", name) for line in lines] for lines, name in ((a, "a"), (b, "b")))
    assert measured == ["stretch 1.0", *a, *b, "stretch 0.1", *b, *a, "stretch 1.0", *b, *a, "stretch 0.1", *a, *b]
    assert {name: len(rounds) for name, rounds in found.items()} == {"true": 2, "short": 2}
    closed, open_ = found["true"][0]["a"]
    assert (closed.per_second, open_.p50_ms, closed.failed, closed.error) == (100.0, 2.0, 1, "lost")


def cell(per_second: float, p50_ms: float, failed: int = 0) -> Cell:
    processor = Processor({ROUTER: 0.5, DEVICES: 0.2, REST: 0.1}, 0.1, 0.0, 2)
    return Cell(per_second, p50_ms, 3 * p50_ms, failed, "", processor, 1.6)


def test_the_best_settings_have_no_failures() -> None:
    nodes: Any = None
    tried = [
        Tried("proxies", RaySystem(nodes, Form(max_ongoing=most)), cell(speed, 9.0, failed), cell(50, lone))
        for most, speed, failed, lone in ((1, 300, 0, 5.0), (5, 400, 0, 7.0), (100, 900, 3, 1.0))
    ]
    fast, soon = best(tried)
    assert (fast.system.form.max_ongoing, soon.system.form.max_ongoing) == (5, 1)
    assert best(tried[2:])[0] is tried[2]
    report = Report("serve_routers", quick=True)
    report_search(report, tried, [(fast, soon)], 48)
    assert [each["closed"]["per_second"] for each in report.measured["search"]] == [300, 400, 900]
    assert report.measured["settings"] == [["proxies: HTTP, 5 ongoing", "proxies: HTTP, 1 ongoing"]]


def test_claims_are_by_round_and_against_both_ways_of_ray(tmp_path: Path) -> None:
    report = Report("serve_routers", quick=True)
    systems = {TIDAL: (1200, 2.0), ROUND_ROBIN: (1100, 3.0), LEAST_OUTSTANDING: (1000, 2.5)}
    systems |= {RAY: (300, 10.0), HAPROXY: (600, 4.0)}
    rounds = [
        {name: (cell(speed * factor, 40.0), cell(100, p50)) for name, (speed, p50) in systems.items()}
        for factor in (1.0, 1.5)
    ]
    rounds[1][RAY] = (cell(300, 40.0), cell(100, 8.0))
    for case in ("true", "short"):
        add_case(report, case, rounds, PLAN)
    claims = {claim.name: claim for claim in report.claims}
    assert len(claims) == 8
    assert claims["vs_ray_serve_throughput[router, true]"].measured == pytest.approx((4 + 6) / 2)
    assert claims["vs_ray_serve_p50[router, true]"].measured == pytest.approx((0.2 + 0.25) / 2)
    assert claims["vs_ray_serve_p50[router, true]"].holds
    assert not claims["vs_ray_serve_throughput[HAProxy, short]"].holds
    assert "0.20 to 0.25" in claims["vs_ray_serve_p50[router, true]"].note
    report.measured["plan"] = {"in_flight": 48, "rate": 100.0}
    plot(report.document(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_ray_serve_left_out_leaves_no_claims(tmp_path: Path) -> None:
    report = Report("serve_routers", quick=True)
    add_case(report, "true", [{TIDAL: (cell(1, 1), cell(1, 1))}], PLAN)
    assert report.claims == []


def test_replicas_take_the_time_of_the_shortest_runtime_that_fits() -> None:
    seconds = benchmark._by_length(0.1)
    assert len(seconds) == 513
    assert seconds[1] == seconds[64] == pytest.approx(0.1 * BASE.times.static_s[0])
    assert seconds[65] == pytest.approx(0.1 * BASE.times.static_s[1])
    assert seconds[512] == pytest.approx(0.1 * BASE.times.static_s[-1])


def test_settings_are_tried_in_every_mode() -> None:
    modes = [*ray_serve.ROUTED, ray_serve.BALANCED]
    assert len({mode.name for mode in modes}) == len(modes)
    assert {form.ingress for mode in ray_serve.ROUTED for form in mode.forms} == set(Ingress)
    assert all(len(set(mode.forms)) == len(mode.forms) > 1 for mode in modes)
    assert len(ray_serve.chosen(modes[0], quick=True).forms) == 1
