"""The parts of the request path's benchmark that need no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from benchmarks.plots import style
from benchmarks.report import Report, machine
from benchmarks.request_path import every_system, outcome, plot
from benchmarks.request_path.bare import BareConfig, SearchSpace, all_shapes, floors, search, whole_shapes
from benchmarks.request_path.client_load import inputs_of
from benchmarks.request_path.comparison import BARE, TIDAL, BareComparison, Cells
from benchmarks.request_path.load import (
    LoadFailed,
    LoopResult,
    PerfAnalyzerLoad,
    Requests,
    read_parts,
    read_report,
    read_tokens,
)
from benchmarks.request_path.measure import RequestPathCell, medians
from benchmarks.request_path.rounds import Bench, Side
from testing.perf_analyzer import PerfAnalyzer

REPORT = """Concurrency,Inferences/Second,Client Send,p50 latency,p90 latency,p95 latency,p99 latency
64,1203.47,5,42236,93748,103606,181149
"""


def cell(per_second: float, *, p50: float = 1.0, p99: float = 2.0, stub: float = 0.5, tokens: float = 0) -> Any:
    cpu = {"client": 0.1, "tritonserver": 0.2, "stub": stub}
    return RequestPathCell(per_second, p50, p99, cpu, 4.0, 0.5, tokens)


def test_a_report_of_perf_analyzer_is_read_in_milliseconds() -> None:
    assert read_report(REPORT) == LoopResult(1203.47, 42.236, 181.149)


def test_tokens_of_parts_are_counted_in_an_export_that_ends_early() -> None:
    text = (
        '{"requests":[{"request_inputs":{"text_input":"\xff"},"response_timestamps":[5,15,1000000010],'
        '"response_outputs":[{"token_ids":[1,2,3]},{"token_ids":[4]},{"finish_reason":"length","token_ids":[5,6]}]},'
        '{"response_timestamps":[2000000010],"response_outputs":[{"token_ids":[7,8]}]}],"window_bound'
    )
    assert read_tokens(text) == 2.0
    assert read_tokens("") == 0.0


def test_parts_per_second_are_those_that_perf_analyzer_prints() -> None:
    assert read_parts("  Throughput: 454.1 infer/sec\n    Response Throughput: 870.551 infer/sec\n") == 870.551


def fake_program(folder: Path, *outputs: str, status: int = 0) -> PerfAnalyzer:
    """A program that writes the report and prints the next of some outputs at each call."""
    program = folder / "perf_analyzer"
    cases = "".join(f"{number}) echo '{text}';;\n" for number, text in enumerate(outputs))
    calls = folder / "calls"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\ncase $(($(wc -l < {calls}) - 1)) in\n{cases}esac\n'
        f"cat > report.csv << 'END'\n{REPORT}END\nexit {status}\n"
    )
    program.chmod(0o755)
    return PerfAnalyzer(program, None)


def test_slow_engines_are_measured_by_count(tmp_path: Path) -> None:
    program = fake_program(tmp_path, "Please use a larger time window.", "fine")
    requests = Requests("m", [{"text_input": ["a"]}], {"task": "t", "max_tokens": 3})
    found = PerfAnalyzerLoad(program).run("here:1", requests, concurrency=64, seconds=0.9)
    assert found.per_second == 1203.47
    first, second = (tmp_path / "calls").read_text().splitlines()
    assert "-p 300 " in first
    assert "--request-parameter task:t:string --request-parameter max_tokens:3:int" in first
    assert "count_windows" not in first
    assert second.endswith("--measurement-mode count_windows --measurement-request-count 64")


@pytest.mark.parametrize(("printed", "status"), [("Failed request count: 3", 0), ("", 99)])
def test_failed_requests_are_an_error(tmp_path: Path, printed: str, status: int) -> None:
    program = fake_program(tmp_path, printed, status=status)
    with pytest.raises(LoadFailed, match="m: "):
        PerfAnalyzerLoad(program).run("here:1", Requests("m", []), concurrency=1, seconds=1)


def test_rows_for_perf_analyzer_are_read_by_the_client() -> None:
    assert inputs_of({"text_input": ["ü"]})["text_input"].tolist() == [["ü".encode()]]
    assert inputs_of({"image": {"b64": "AgAAAFBO"}})["image"].tolist() == [[b"PN"]]


def test_the_fastest_configuration_is_found_for_each_number_in_flight() -> None:
    asked: list[tuple[str, int]] = []

    def speed(each: BareConfig, concurrency: int) -> float:
        asked.append((each.model, concurrency))
        delayed = 5 if each.delay_us == 200 and concurrency == 64 else 0
        return 100 * each.instances + 10 * each.threads - abs(each.max_batch - concurrency / 2) + delayed

    space = SearchSpace([(1, 2), (2, 1)], (8, 32), (0, 200))
    found = search("m", (1, 16, 64), speed, space)
    assert found[1] == BareConfig("m", 2, 1, 1)
    assert found[16] == BareConfig("m", 2, 1, 8)
    assert found[64] == BareConfig("m", 2, 1, 32, delay_us=200)
    assert not any("batch" in model.replace("batch1", "") for model, at in asked if at == 1)


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_shapes_use_at_most_all_cores(cores: int) -> None:
    assert all(count <= max(2, cores) for count, _ in all_shapes(cores))
    assert all(count * threads == cores for count, threads in whole_shapes(cores))
    assert (1, cores) in whole_shapes(cores)


def test_every_bare_model_has_a_config_that_triton_knows(tmp_path: Path) -> None:
    best = BareConfig("m", 2, 1, 32, delay_us=200)
    models = [BareConfig("m", 1, 2, 1), best, *floors(best)]
    for each in models:
        each.write(tmp_path, Path("/version"))
        config = model_config_pb2.ModelConfig()
        text_format.Parse((tmp_path / each.model / "config.pbtxt").read_text(), config)
        assert config.max_batch_size == each.max_batch
        assert config.instance_group[0].count == each.instances
        assert config.HasField("dynamic_batching") == (each.max_batch > 1)
        assert config.dynamic_batching.max_queue_delay_microseconds == each.delay_us
        assert config.parameters["answers"].string_value == each.answers
    assert len({each.model for each in models}) == 4


class Pretended(Bench):
    """A bench that notes the order of its measurements."""

    def measure(self, side: Side, concurrency: int, seed: int, seconds: float | None = None) -> RequestPathCell:
        made = side.make(seed)
        order.append((made.model, seed))
        return cell(float(seed))


order: list[tuple[str, int]] = []


def test_rounds_alternate_and_have_new_texts() -> None:
    order.clear()
    bench = Pretended(None, 1.0, 3)  # type: ignore[arg-type]
    sides = {name: Side(None, lambda seed, name=name: Requests(name, [])) for name in "ab"}  # type: ignore[arg-type,misc]
    cells = bench.alternate(sides, 8)
    warm_ups, rounds = order[:2], order[2:]
    assert [name for name, _ in warm_ups] == ["a", "b"]
    assert {seed for _, seed in warm_ups}.isdisjoint(seed for _, seed in rounds)
    assert rounds == [("a", 800), ("b", 800), ("b", 801), ("a", 801), ("a", 802), ("b", 802)]
    assert [each.per_second for each in cells["b"]] == [800, 801, 802]
    assert medians(cells["a"]).per_second == 801


def compared(ours: Sequence[Any], theirs: Sequence[Any], concurrencies: Sequence[int]) -> BareComparison:
    best = {at: BareConfig("m", 1, 2, 32) for at in concurrencies}
    sides: Mapping[str, Any] = {TIDAL: list(ours), BARE: list(theirs)}
    return BareComparison("m", best, {at: dict(sides) for at in concurrencies}, dict(sides))


def claims(report: Report) -> dict[str, tuple[float, bool]]:
    return {claim.name: (claim.measured, claim.holds) for claim in report.claims}


def test_claims_are_medians_over_rounds_of_pairs() -> None:
    ours = [cell(90, p50=1.2, p99=5, stub=0.6), cell(50, p50=1.1, p99=2), cell(95, p50=9.0, p99=2.4, stub=0.9)]
    theirs = [cell(100, p50=1.0, p99=2), cell(100, p50=1.0, p99=4), cell(100, p50=8.9, p99=2, stub=0.6)]
    report = Report("request_path", quick=True)
    outcome.add_free(report, compared(ours, theirs, (1, 16, 64)))
    outcome.add_real(report, "fp32", compared(ours, theirs, (1, 8, 64)), claimed=True)
    outcome.add_real(report, "int8", compared(ours, theirs, (1, 8, 64)), claimed=False)
    assert claims(report) == {
        "free_engine_requests_vs_bare[16]": (0.9, True),
        "free_engine_requests_vs_bare[64]": (0.9, True),
        "free_engine_added_p50_ms": (0.1, True),
        "cpu_ms_per_query_vs_bare": (0.1, True),
        "p99_vs_bare[64]": (1.2, True),
        "stub_requests_per_s": (90, True),
        "lone_query_added_over_bare_ms": (0.1, True),
        "throughput_vs_bare[1]": (0.9, False),
        "throughput_vs_bare[8]": (0.9, False),
        "throughput_vs_bare[64]": (0.9, False),
        "p99_vs_bare[64, real]": (1.2, True),
    }


def test_the_worse_number_in_flight_decides_about_the_cpu_time() -> None:
    found = compared([cell(1)], [cell(1)], (1, 16, 64))
    cells: Cells = {**found.cells, 16: {TIDAL: [cell(1, stub=0.8)], BARE: [cell(1, stub=0.5)]}}
    report = Report("request_path", quick=True)
    outcome.add_free(report, BareComparison("m", found.best, cells, {}))
    assert claims(report)["cpu_ms_per_query_vs_bare"] == (0.3, False)


@pytest.mark.parametrize("with_before", [True, False])
def test_claims_against_the_earlier_commit_need_its_measurements(with_before: bool, tmp_path: Path) -> None:
    sides = {TIDAL: [cell(200, tokens=2.0)]}
    if with_before:
        sides[every_system.BEFORE] = [cell(100, tokens=3.0)]
    report = Report("request_path", quick=True)
    outcome.add_systems(report, {name: {64: sides} for name in every_system.SYSTEMS.values()})
    names = [f"requests_vs_before[{name}]" for name in ("tabi", "pets", "otas", "flover")]
    assert claims(report) == (dict.fromkeys(names, (2.0, True)) if with_before else {})
    assert not with_before or "a part has 2.0 tokens, before 3.0" in report.claims[-1].note


def test_the_figure_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(style, "DPI", 30)
    report = Report("request_path", quick=True)
    outcome.add_free(report, compared([cell(1)], [cell(2)], (1, 16, 64)))
    outcome.add_real(report, "fp32", compared([cell(1)], [cell(2)], (1, 8, 64)), claimed=True)
    outcome.add_systems(report, {"arlo": {64: {TIDAL: [cell(2)], every_system.BEFORE: [cell(1)]}}})
    plot.save({**report.document(), "machine": machine()}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
