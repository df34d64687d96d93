"""The comparison of decoders in processes: timelines, the peer's process, cases, claims, and a whole small run."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.environments import GENAI, why_not
from benchmarks.flover.peers import __main__ as program
from benchmarks.flover.peers import decoders
from benchmarks.flover.peers.cases import PeerLoads
from benchmarks.flover.peers.decoders import Precision
from benchmarks.flover.peers.measuring import PrecisionRun
from benchmarks.flover.peers.outcome import add_tables, make_claims, ratio
from benchmarks.flover.peers.plot import plot
from benchmarks.flover.peers.requests import Timeline
from benchmarks.flover.peers.worker_process import PeerFailed, Worker
from benchmarks.report import Report

_ECHO = """
import json, sys
for line in sys.stdin:
    call = json.loads(line)
    if call["call"] == "end":
        print("the reason", file=sys.stderr)
        break
    print(json.dumps({"error": "ValueError: no"} if call["call"] == "fail" else {"result": call}), flush=True)
"""


def timeline(*times: list[float], at: list[float] | None = None) -> Timeline:
    return Timeline(at or [0.0] * len(times), list(times), [0] * len(times))


def test_figures_of_a_timeline() -> None:
    found = timeline([1.0, 2.0, 4.0], [3.0, 5.0], at=[0.0, 2.5])
    assert (found.seconds, found.tokens_per_s) == (5.0, 1.0)
    assert (found.first_token_s(), found.latency_s()) == ([1.0, 0.5], [4.0, 2.5])


def test_gaps_are_those_that_overlap_the_time() -> None:
    found = timeline([0.0, 1.0, 2.0, 5.0, 6.0])
    assert found.gaps(0, 1.5, 4.0) == [1.0, 3.0]
    assert found.gaps(0, 0.0, 1.0) == [1.0]
    assert found.gaps(0, 5.5, 16.0) == [1.0, 10.0]  # nothing came until the end


def test_a_process_answers_calls_and_reports_failures(tmp_path: Path) -> None:
    command = (sys.executable, "-c", textwrap.dedent(_ECHO))
    with Worker(tmp_path / "log", command) as worker:
        assert worker.call("run", number=2) == {"call": "run", "number": 2}
        with pytest.raises(PeerFailed, match="'fail' failed: ValueError: no"):
            worker.call("fail")
        with pytest.raises(PeerFailed, match="'end' ended the process: the reason"):
            worker.call("end")


class ExportOf:
    """A peer whose exported graph has a number of bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def call(self, _name: str, **_arguments: object) -> int:
        return self.size


@pytest.mark.parametrize(("precision", "most"), [("int8", 600), ("int4", 500)])
def test_a_graph_that_is_not_compressed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision, most: int
) -> None:
    monkeypatch.setenv("TIDAL_CACHE", str(tmp_path))
    decoder = decoders.SMALL[0]
    decoder.source.mkdir(parents=True)
    (decoder.source / "model.safetensors").write_bytes(bytes(1000))
    decoder._export(cast(Any, ExportOf(most)), precision)
    with pytest.raises(PeerFailed, match=f"the graph of {precision} has {most + 1} bytes of weights, more than {most}"):
        decoder._export(cast(Any, ExportOf(most + 1)), precision)


def test_cases_are_equal_by_seed_and_have_the_lengths() -> None:
    loads = PeerLoads(vocabulary=100, tokens=7, long=900)
    together = loads.together(8)
    assert together.requests(3) == together.requests(3) != together.requests(4)
    assert [(len(each.prompt), each.tokens) for each in together.requests(3)] == [(32, 7)] * 8
    first, *others = loads.shared().requests(3)
    assert {tuple(each.prompt[:512]) for each in others} == {tuple(first.prompt)}
    assert len({tuple(each.prompt) for each in others}) == len(others) == 16
    stream, long = loads.beside().requests(3)
    assert (stream.at, len(long.prompt), loads.beside().until) == (0.0, 900, 1)
    assert long.at > stream.at


def test_gaps_beside_a_prompt_are_relative_to_those_before() -> None:
    steps = [0.5 + 0.1 * number for number in range(16)] + [2.3, 2.6, 2.9]
    found = PeerLoads(100, 7, 900).beside().figures(timeline(steps, [3.2], at=[0.0, 2.0]))
    assert found["gap p50 beside, ratio"] == pytest.approx(3.0)
    assert found["first token beside a stream"] == pytest.approx(1.2)


def test_recorded_lengths_are_bounded(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "azure_llm_2023").mkdir()
    with gzip.open(tmp_path / "azure_llm_2023" / "conv.csv.gz", "wt") as file:
        file.write("t,ContextTokens,GeneratedTokens\n0.0,5000,1\n")
    requests = PeerLoads(100, 7, 900).recorded(tmp_path, 2.0).requests(5)
    assert {(len(each.prompt), each.tokens) for each in requests} == {(1024, 2)}
    assert [each.at for each in requests] == sorted(each.at for each in requests)
    assert requests[-1].at == pytest.approx((len(requests) - 1) / 2.0)


def run_of(**figures: tuple[list[float], list[float]]) -> PrecisionRun:
    names = {f"tokens/s[{n}]" for n in (1, 8, 32)} | {f"first token[{n}]" for n in (1, 8, 32)}
    names |= {"first token, 512 prompt", "first token, shared"}
    found = {name: {"Tidal": [2.0, 2.0], "OpenVINO GenAI": [2.0, 2.0]} for name in names}
    found["first token, shared"]["Tidal, prefixes computed"] = [12.0, 8.0]
    for name, (ours, theirs) in figures.items():
        found[name] = {"Tidal": ours, "OpenVINO GenAI": theirs}
    return PrecisionRun(figures=found)


def test_claims_are_medians_of_the_rounds_ratios() -> None:
    run = run_of(**{"tokens/s[8]": ([3.0, 2.0, 9.0], [2.0, 4.0, 3.0])})
    assert ratio(run, "tokens/s[8]").rounds == (1.5, 0.5, 3.0)
    claims = {each.name: each for each in make_claims({"int8": run}, ",gpt2")}
    assert claims["vs_best_peer[int8,8,gpt2]"].measured == 1.5
    assert "rounds 0.50 to 3.00" in claims["vs_best_peer[int8,8,gpt2]"].note
    assert claims["prefix_ttft_speedup[512 shared,int8,gpt2]"].measured == 5.0
    assert not [name for name in claims if name.startswith(("prefill_8k", "itl", "recorded", "capacity", "int4"))]


def test_claims_of_long_prompts_memory_and_precisions() -> None:
    run = run_of(
        **{
            "first token, 8000 prompt": ([3.0], [2.0]), "gap p99 beside, ratio": ([1.5], [40.0]),
            "latency, recorded": ([1.0], [2.0]), "first token, recorded": ([1.0], [4.0]),
        }
    )  # fmt: skip
    run.figures["gap p99 beside, ratio"] = {"Tidal": [1.5]}  # the peer's was not measured
    run.sequences = {"bf16": {"Tidal": 100.0, "OpenVINO GenAI": 80.0}}
    faster = run_of(**{"tokens/s[1]": ([5.0, 5.0], [3.0, 3.0])})
    claims = {each.name: each for each in make_claims({"bf16": run, "int4": faster}, "")}
    assert "the peer's: not measured" in claims["itl_p99_during_8k_prefill_ratio[bf16]"].note
    add_tables(Report("flover_peers", quick=True), "a decoder", "bf16", run)
    assert claims["prefill_8k_vs_best_peer[bf16]"].measured == 1.5
    assert not claims["prefill_8k_vs_best_peer[bf16]"].holds
    assert claims["itl_p99_during_8k_prefill_ratio[bf16]"].measured == 1.5
    assert claims["recorded_ttft_vs_best_peer[bf16]"].measured == 0.25
    assert claims["capacity_vs_best_peer[bf16]"].measured == 1.25
    assert claims["int4_vs_bf16[1]"].measured == 2.5


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not(GENAI)), reason="the environment 'genai' is not installed: make peers")
def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(program, "PRECISIONS", ("int8",))
    monkeypatch.setattr(decoders, "PRECISIONS", ("int8",))
    program.main(quick=True, prepare=False, data=None, threads=2, json=tmp_path / "peers.json")
    document = json.loads((tmp_path / "peers.json").read_text())
    names = {each["name"] for each in document["claims"]}
    assert {"vs_best_peer[int8,32]", "ttft_512_vs_best_peer[int8,gpt2]", "prefill_8k_vs_best_peer[int8]"} <= names
    for runs in document["measured"]["decoders"].values():
        assert runs["int8"]["equal"] > 0.5  # both have the same weights
    plot(document, tmp_path / "again.png")
    assert (tmp_path / "again.png").stat().st_size > 10_000
