"""Equality of Tidal's embeddings with the source model's, in all precisions, and the speed of the lower ones."""

from __future__ import annotations

import csv
import gzip
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.encoders.agreement import cosines, encode_with_source
from benchmarks.encoders.cells import measure_closed
from benchmarks.encoders.claims import CLAIMED
from benchmarks.encoders.formats import Values
from benchmarks.encoders.prepare import EncoderArtefacts, model_name
from benchmarks.encoders.run import EncoderRun
from benchmarks.encoders.search import MOST_PER_SECOND
from benchmarks.encoders.sides import TidalSide, warm_up
from benchmarks.encoders.workload import Traffic, Workload
from benchmarks.report import Claim, Report, progress
from tidal.repository.entries import ModelEntry
from tidal.server.child import tidal_serve

#: Precisions that are measured where they were built; bf16 is built on processors that have it.
PRECISIONS = ("fp32", "bf16", "int8")
_GOALS = {"fp32": ">= 0.9999", "bf16": ">= 0.998", "int8": ">= 0.998"}
_IN_FLIGHT, _WARM_S, _SEED = 32, 1.0, 3_000_000
_ROWS = 16


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of sentences with the similarity that people gave them.

    Attributes:
        first: First sentence of each pair.
        second: Second sentence of each pair.
        scores: Similarity of each pair from 0 to 5.
    """

    first: Sequence[str]
    second: Sequence[str]
    scores: Sequence[float]


def read_pairs(data: Path, count: int) -> Pairs:
    """Read pairs of STSbenchmark's development set.

    Args:
        data: Folder with `stsb_en/dev.csv.gz`.
        count: Number of pairs at most.
    """
    with gzip.open(data / "stsb_en" / "dev.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[:count]
    return Pairs([row[0] for row in rows], [row[1] for row in rows], [float(row[2]) for row in rows])


def similarities(vectors: Values) -> Values:
    """Return the cosine of each pair.

    Args:
        vectors: Embeddings of all first sentences, then of all second ones, [2 * pairs, values].
    """
    half = len(vectors) // 2
    return cosines(vectors[:half], vectors[half:])


def rank_correlation(a: Sequence[float] | Values, b: Sequence[float] | Values) -> float:
    """Return Spearman's rank correlation of two lists of numbers."""
    return float(spearmanr(a, b).statistic)


@dataclass(frozen=True)
class QualityBench:
    """Compares embeddings of Tidal with the source model's.

    Args:
        artefacts: Prepared artefacts.
        run: Run that receives the results.
        workload: Generator of requests.
        rounds: Number of rounds of the comparison of speeds.
        seconds: Length of a measurement in seconds.
    """

    artefacts: EncoderArtefacts
    run: EncoderRun
    workload: Workload
    rounds: int
    seconds: float

    def measure(self, data: Path | None, pairs: int) -> None:
        """Measure what the run has no results of.

        Args:
            data: Folder of data; None leaves out the pairs of sentences.
            pairs: Number of pairs of sentences at most.
        """
        if "quality" in self.run.facts:
            return
        built = [
            precision
            for precision in PRECISIONS
            if ModelEntry(self.artefacts.repository / model_name("embed", precision)).latest() is not None
        ]
        named = [part for precision in built for part in ("--model", model_name("embed", precision))]
        with tidal_serve(self.artefacts.repository, *named) as server:
            sides = {precision: TidalSide(server, "embed", precision) for precision in built}
            found = {"precisions": built, "texts": self._texts(sides["fp32"])}
            if data is not None:
                found["pairs"] = self._pairs(read_pairs(data, pairs), sides)
            if len(sides) > 1:
                found["speed"] = self._speed(sides)
        self.run.fact("quality", lambda: found)

    def _texts(self, side: TidalSide) -> dict[str, float]:
        progress("embeddings of texts against transformers")
        texts = [
            row
            for traffic in (CLAIMED["embed"], Traffic("embed", "documents"))
            for rows in self.workload.requests(traffic, 64, _SEED)
            for row in rows
        ]
        found = cosines(_embed(side, texts), encode_with_source(self.artefacts.source("embed"), "embed", texts))
        return {"count": len(texts), "cosine_min": float(found.min())}

    def _pairs(self, pairs: Pairs, sides: dict[str, TidalSide]) -> dict[str, Any]:
        progress(f"similarities of {len(pairs.scores)} pairs of sentences against transformers")
        sentences = [*pairs.first, *pairs.second]
        source = encode_with_source(self.artefacts.source("embed"), "embed", sentences)
        wanted = similarities(source)
        found: dict[str, Any] = {"count": len(pairs.scores), "source": rank_correlation(wanted, pairs.scores)}
        for precision, side in sides.items():
            vectors = _embed(side, sentences)
            served = similarities(vectors)
            found[precision] = {
                "cosine_min": float(cosines(vectors, source).min()),
                "spearman_vs_source": rank_correlation(served, wanted),
                "spearman_vs_people": rank_correlation(served, pairs.scores),
            }
        return found

    def _speed(self, sides: dict[str, TidalSide]) -> dict[str, Any]:
        rates: dict[str, list[float]] = {precision: [] for precision in sides}
        count = round((self.seconds + _WARM_S) * 2 * MOST_PER_SECOND)
        for side in sides.values():
            requests = self.workload.requests(CLAIMED["embed"], count, _SEED + 1)
            warm_up(side, requests, in_flight=_IN_FLIGHT, seconds=_WARM_S)
        for at in range(self.rounds):
            progress(f"round {at + 1} of {self.rounds}: {' and '.join(sides)}")
            requests = self.workload.requests(CLAIMED["embed"], count, _SEED + 2 + at)
            for precision in sides if at % 2 else reversed(list(sides)):
                given = {"in_flight": _IN_FLIGHT, "seconds": self.seconds, "warm_s": _WARM_S / 2}
                cell = measure_closed(sides[precision], requests, **given)  # type: ignore[arg-type]
                rates[precision].append(cell.per_second)
        return rates


def make_claims(run: EncoderRun) -> list[Claim]:
    """Return the claims of equality and of lower precisions that a run has results for."""
    quality = run.facts.get("quality")
    if quality is None:
        return []
    pairs, texts = quality.get("pairs"), quality["texts"]
    smallest = [texts["cosine_min"], *([pairs["fp32"]["cosine_min"]] if pairs else [])]
    note = f"{texts['count']} made texts" + (f", {2 * pairs['count']} real sentences" if pairs else "")
    claims = [Claim("embedding_cosine_min", ">= 0.99999", min(smallest), note=note)]
    rates = quality.get("speed", {})
    for precision in [each for each in rates if each != "fp32"]:
        ratios = [ours / theirs for ours, theirs in zip(rates[precision], rates["fp32"], strict=True)]
        agreed = f"Spearman against fp32's source {pairs[precision]['spearman_vs_source']:.4f}; " if pairs else ""
        note = f"{agreed}{_IN_FLIGHT} in flight; rounds {min(ratios):.2f} to {max(ratios):.2f}"
        claims.append(Claim(f"{precision}_speedup[MiniLM]", "> 0", statistics.median(ratios), note=note))
    for precision in quality["precisions"] if pairs else ():
        found = pairs[precision]
        note = f"with people's scores {found['spearman_vs_people']:.4f}, the source {pairs['source']:.4f}"
        name = f"stsb_spearman_vs_source[{precision}]"
        claims.append(Claim(name, _GOALS[precision], found["spearman_vs_source"], note=note))
    return claims


def add_table(report: Report, run: EncoderRun) -> None:
    """Add the table of precisions."""
    quality = run.facts.get("quality")
    if not quality or not quality.get("pairs"):
        return
    pairs, rates = quality["pairs"], quality.get("speed", {})
    rows = [
        [
            precision,
            f"{statistics.median(rates[precision]):.1f}" if precision in rates else "-",
            *(f"{pairs[precision][name]:.6f}" for name in ("cosine_min", "spearman_vs_source", "spearman_vs_people")),
        ]
        for precision in quality["precisions"]
    ]
    columns = ["precision", f"1/s at {_IN_FLIGHT}", "smallest cosine", "Spearman to source", "Spearman to people"]
    report.add_table("precisions of the embedding model", columns, rows)


def _embed(side: TidalSide, texts: Sequence[Any]) -> Values:
    return np.concatenate([side.answer(texts[at : at + _ROWS]) for at in range(0, len(texts), _ROWS)])
