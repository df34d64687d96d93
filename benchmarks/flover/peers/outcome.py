"""Tables and claims of the measured precisions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.flover.peers.cases import SHARED, STREAMS
from benchmarks.flover.peers.measuring import GENAI, TIDAL, WHOLE, PrecisionRun
from benchmarks.report import Claim, Report

COLUMNS = ["", "Tidal", "OpenVINO GenAI", "ratio", "rounds"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Tidal's figure over the peer's, by round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> str:
        """Smallest and largest."""
        return f"{min(self.rounds):.2f} to {max(self.rounds):.2f}"


def ratio(run: PrecisionRun, figure: str, ours: str = TIDAL, theirs: str = GENAI) -> Ratio:
    """Return a figure of a side over that of another one in the same round."""
    found = run.figures[figure]
    return Ratio(tuple(mine / other for mine, other in zip(found[ours], found[theirs], strict=True)))


def add_tables(report: Report, name: str, precision: str, run: PrecisionRun) -> None:
    """Add the peer's search, and both sides' figures, to a report."""
    purposes = list(run.chosen)
    rows = [
        [settings, *(f"{found[each]:.3g}{'*' if run.chosen[each] == settings else ''}" for each in purposes)]
        for settings, found in run.searched.items()
    ]
    units = ["tokens/s" if each.endswith("streams") else "p99 ratio" if "beside" in each else "s" for each in purposes]
    columns = ["settings", *(f"{each}, {unit}" for each, unit in zip(purposes, units, strict=True))]
    report.add_table(f"{name}, {precision}: the peer's settings (* chosen)", columns, rows)
    report.add_table(f"{name}, {precision}", COLUMNS, [_row(run, figure) for figure in run.figures])


def make_claims(runs: Mapping[str, PrecisionRun], suffix: str) -> list[Claim]:
    """Return the claims of a decoder.

    Args:
        runs: Figures by precision.
        suffix: End of the cases' names, such as `,gpt2`.
    """
    claims = []

    def add(name: str, goal: str, found: Ratio, note: str) -> None:
        claims.append(Claim(name, goal, found.median, note=f"{note}; rounds {found.spread}"))

    for precision, run in runs.items():
        for count in STREAMS:
            case = f"{precision},{count}{suffix}"
            add(f"vs_best_peer[{case}]", ">= 1.0", ratio(run, f"tokens/s[{count}]"), "tokens per second")
            add(f"ttft_vs_best_peer[{case}]", "<= 1.0", ratio(run, f"first token[{count}]"), "mean time to first token")
        add(
            f"ttft_512_vs_best_peer[{precision}{suffix}]", "<= 1.0", ratio(run, "first token, 512 prompt"),
            "a prompt by itself",
        )  # fmt: skip
        shared = ratio(run, "first token, shared", WHOLE, TIDAL)
        add(f"prefix_ttft_speedup[{SHARED} shared,{precision}{suffix}]", ">= 5", shared, "without reuse over with it")
        shared = ratio(run, "first token, shared")
        add(f"prefix_ttft_vs_best_peer[{precision}{suffix}]", "<= 1.0", shared, "both reuse prefixes")
        for figure in run.figures:
            if figure.startswith("first token, ") and figure.endswith("prompt") and "512" not in figure:
                add(f"prefill_8k_vs_best_peer[{precision}{suffix}]", "<= 1.0", ratio(run, figure), figure)
        if "gap p99 beside, ratio" in run.figures:
            ours = Ratio(tuple(run.figures["gap p99 beside, ratio"][TIDAL]))
            of_peer = run.figures["gap p99 beside, ratio"].get(GENAI)
            theirs = "not measured" if of_peer is None else f"{statistics.median(of_peer):.2f}"
            note = f"p99 of a stream's gaps over the median without; the peer's: {theirs}"
            add(f"itl_p99_during_8k_prefill_ratio[{precision}{suffix}]", "<= 2", ours, note)
        if "latency, recorded" in run.figures:
            note = "recorded lengths, Poisson arrivals at 70 % of the peer's throughput"
            add(f"recorded_latency_vs_best_peer[{precision}{suffix}]", "<= 1.0", ratio(run, "latency, recorded"), note)
            found = ratio(run, "first token, recorded")
            add(f"recorded_ttft_vs_best_peer[{precision}{suffix}]", "<= 1.0", found, note)
        for kind, sides in run.sequences.items():
            note = (
                f"sequences of 256 tokens in a GiB, {kind} keys and values: {sides[TIDAL]:.0f} and {sides[GENAI]:.0f}"
            )
            claims.append(
                Claim(f"capacity_vs_best_peer[{kind}{suffix}]", ">= 1.0", sides[TIDAL] / sides[GENAI], note=note)
            )
    if {"bf16", "int4"} <= runs.keys():
        fast, slow = (runs[each].figures["tokens/s[1]"] for each in ("int4", "bf16"))
        found = Ratio(tuple(one / other for one, other in zip(fast[TIDAL], slow[TIDAL], strict=True)))
        gained = statistics.median(fast[GENAI]) / statistics.median(slow[GENAI])
        add(f"int4_vs_bf16[1{suffix}]", ">= 1.8", found, f"tokens per second; the peer's: {gained:.2f}")
    return claims


def _row(run: PrecisionRun, figure: str) -> list[str]:
    found = run.figures[figure]
    if GENAI not in found:
        return [figure, f"{statistics.median(found[TIDAL]):.3g}", "-", "-", Ratio(tuple(found[TIDAL])).spread]
    over = ratio(run, figure)
    cells = [f"{statistics.median(found[side]):.3g}" for side in (TIDAL, GENAI)]
    without = f" (without reuse {statistics.median(found[WHOLE]):.3g})" if WHOLE in found else ""
    unit = "" if "/s" in figure or "ratio" in figure else ", s"
    return [f"{figure}{unit}", f"{cells[0]}{without}", cells[1], f"{over.median:.2f}", over.spread]
