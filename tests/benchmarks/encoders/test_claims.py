"""Claims, tables and figure of the benchmark of encoders."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.encoders import bulk, claims, mixed_tasks, plot, quality, tables
from benchmarks.encoders.__main__ import QUICK
from benchmarks.encoders.cells import Case
from benchmarks.encoders.claims import CLAIMED
from benchmarks.encoders.source import TASKS
from benchmarks.encoders.systems import FASTAPI, FASTEMBED, LITSERVE, ONNX, RAY, TIDAL, TORCH
from benchmarks.plots import style
from benchmarks.report import Report
from tests.benchmarks.encoders.support import made, made_run


def test_claims_compare_with_the_best_peer_of_each_case(tmp_path: Path) -> None:
    cells = {
        Case(CLAIMED["embed"], 32).name: {
            TIDAL: [made(120), made(90), made(130)],
            FASTAPI: [made(100), made(100), made(100)],
            TORCH: [made(40), made(40), made(40)],
            ONNX: [made(60), made(60), made(50)],
            FASTEMBED: [made(1000), made(1000), made(1000)],
        },
        Case(CLAIMED["embed"], share=0.7).name: {
            TIDAL: [made(70, p99_ms=20), made(70, p99_ms=30), made(70, p99_ms=20)],
            FASTAPI: [made(70, p99_ms=50), made(70, p99_ms=50), made(70, p99_ms=50)],
            LITSERVE: [made(70, p99_ms=40), made(70, p99_ms=25), made(70, p99_ms=10)],
        },
    }
    found = {claim.name: claim for claim in claims.make_claims(made_run(tmp_path, **cells))}
    assert {name: (claim.measured, claim.holds) for name, claim in found.items()} == {
        "throughput_vs_best_peer[embed,32]": (1.2, True),
        "throughput_vs_infinity[embed,32]": (2.0, True),
        "p99_vs_best_peer[70]": (1.2, False),
    }
    assert found["throughput_vs_best_peer[embed,32]"].note == "FastAPI; rounds 0.90 to 1.30"
    assert found["p99_vs_best_peer[70]"].note.startswith("LitServe")


def test_claims_of_quality(tmp_path: Path) -> None:
    def precision(spearman: float) -> dict[str, float]:
        return {"cosine_min": 0.999995, "spearman_vs_source": spearman, "spearman_vs_people": 0.82}

    run = made_run(tmp_path)
    assert quality.make_claims(run) == bulk.make_claims(run) == mixed_tasks.make_claims(run) == []
    run.facts = {
        "quality": {
            "precisions": ["fp32", "bf16", "int8"],
            "texts": {"count": 8, "cosine_min": 0.999999},
            "pairs": {
                "count": 5,
                "source": 0.83,
                "fp32": precision(1.0),
                "bf16": precision(0.999),
                "int8": precision(0.99),
            },
            "speed": {"fp32": [100.0, 100.0, 50.0], "bf16": [200.0, 110.0, 60.0], "int8": [150.0, 140.0, 80.0]},
        },
        "bulk": {"server": [100.0, 100.0, 50.0], "embed": [96.0, 94.0, 48.0]},
        "mixed_tasks": {"embedding": 0.9999, "regression": 0.99},
    }
    found = {claim.name: (claim.measured, claim.holds) for claim in quality.make_claims(run)}
    assert found == {
        "embedding_cosine_min": (0.999995, True),
        "bf16_speedup[MiniLM]": (1.2, True),
        "int8_speedup[MiniLM]": (1.5, True),
        "stsb_spearman_vs_source[fp32]": (1.0, True),
        "stsb_spearman_vs_source[bf16]": (0.999, True),
        "stsb_spearman_vs_source[int8]": (0.99, False),
    }
    (shared,) = bulk.make_claims(run)
    assert (shared.name, shared.measured, shared.holds) == ("bulk_embed_share", 0.96, True)
    (mixed,) = mixed_tasks.make_claims(run)
    assert (mixed.name, mixed.measured, mixed.holds) == ("mixed_tasks_agreement", 0.99, False)


def test_tables_and_figure_show_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(style, "DPI", 30)
    cases = [case for task in TASKS for case in QUICK.cases(task)]
    run = made_run(tmp_path, **{case.name: {TIDAL: [made(2)], ONNX: [made(1), made(3)]} for case in cases})
    run.searched, run.missing = [["embed, FastAPI", "1 x 2 threads", "1", "2"]], {"embed": {RAY: "not installed"}}
    run.agreement = {"embed": {TIDAL: 1.0}, "rerank": {TIDAL: 1e-7}}
    report = Report("encoders", quick=True)
    tables.add_search(report, run)
    tables.add_agreement(report, run)
    tables.add_cases(report, run, cases)
    assert len(report.tables) == 3 + len(cases)
    report.measured["cells"] = run.cells_json()
    plot.save(report.document(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_similarities_and_their_ranks(tmp_path: Path) -> None:
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert quality.similarities(vectors).tolist() == [1.0, 0.0]
    assert quality.rank_correlation([1, 2, 3], [10, 20, 15]) == pytest.approx(0.5)
    (tmp_path / "stsb_en").mkdir()
    with gzip.open(tmp_path / "stsb_en" / "dev.csv.gz", "wt") as file:
        file.write('"A man, walking",A man walks,4.5\nA dog,A cat,1.0\n')
    assert quality.read_pairs(tmp_path, 1) == quality.Pairs(["A man, walking"], ["A man walks"], [4.5])
